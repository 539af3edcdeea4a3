// Palette: screens and recent places here; an id is asked of the server
const palette = find("#palette");
const recent = () => JSON.parse(stored(RECENT) || "[]");
if (palette) {
  const field = find("input", palette);
  const list = find("ul", palette);
  const screens = all(".nav a").map((link) => ({ text: link.dataset.title, href: link.href }));
  const domains = find("#switch");
  for (const each of domains?.options || []) {
    if (each.value) screens.push({ text: "Domain " + each.value, href: domains.dataset.url + each.value });
  }
  const title = find("h1")?.textContent.trim();
  if (title && title.length < 80) {
    const place = { text: title, href: location.href };
    stored(RECENT, JSON.stringify([place, ...recent().filter((each) => each.href !== place.href)].slice(0, 8)));
  }
  const show = () => {
    const words = field.value.trim().toLowerCase();
    const places = [...screens, ...recent().slice(1)].filter((each) => each.text.toLowerCase().includes(words));
    const links = places.slice(0, 12);
    if (words) links.push({ text: "Look for “" + field.value.trim() + "”", href: find("form", palette).action + "?q=" + encodeURIComponent(field.value.trim()) });
    list.replaceChildren(...links.map((each, index) => {
      const item = make("li");
      const link = make("a", each.text, { href: each.href });
      if (!index) link.dataset.at = "";
      item.append(link);
      return item;
    }));
  };
  on(field, "input", show);
  on(palette, "keydown", (event) => {
    const links = all("a", list);
    const at = links.findIndex((each) => "at" in each.dataset);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const next = links[(at + (event.key === "ArrowDown" ? 1 : links.length - 1)) % links.length];
      if (links[at]) delete links[at].dataset.at;
      if (next) { next.dataset.at = ""; next.scrollIntoView({ block: "nearest" }); }
    } else if (event.key === "Enter" && event.target === field && links[at]) {
      event.preventDefault();
      links[at].click();
    }
  });
  show();
}
