// What was typed or chosen, and differs from what the server wrote
const isChanged = (each) => each.type === "hidden" || each.type === "submit" ? false
  : each.options ? [...each.options].some((one) => one.selected !== one.defaultSelected)
    : each.type === "checkbox" || each.type === "radio" ? each.checked !== each.defaultChecked
      : each.value !== each.defaultValue;
const fields = (within) => all("input, textarea, select", within);
const isDirty = () => all("main form[method=post]").some((form) => fields(form).some(isChanged));
const isBox = (each) => each.type === "checkbox" || each.type === "radio";
const keyOf = (each) => [each.form?.getAttribute("action"), each.name, isBox(each) ? each.value : ""].join(" ");

// Regions: replaced whole, but never under a hand
const waiting = new Map();
const serial = (content) => {
  const holder = make("div");
  holder.append(content.cloneNode(true));
  return holder.innerHTML;
};
// What each region was last given, so that the same again changes nothing.
const given = new Map(all("[data-region]").map((each) => [each.id, each.innerHTML]));
const focusable = (region) => all("a, button, summary, input, textarea, select, [id]", region);
const nameOf = (each) => each.id || each.getAttribute("href")
  || (each.name ? each.name + "=" + (isField(each) ? "" : each.value) : each.textContent);
const replaceRegion = (region, content) => {
  const open = new Set(all("details[open]", region).map((each) => each.id || find("summary", each)?.textContent));
  const typed = fields(region).filter(isChanged);
  const within = region.contains(document.activeElement) && document.activeElement;
  const name = within && nameOf(within);
  const place = within && focusable(region).indexOf(within);
  region.replaceChildren(content);
  for (const each of all("details", region)) if (open.has(each.id || find("summary", each)?.textContent)) each.open = true;
  const fresh = new Map(fields(region).map((each) => [keyOf(each), each]));
  for (const old of typed) {
    const each = fresh.get(keyOf(old));
    if (!each) continue;
    if (isBox(each)) each.checked = old.checked;
    else if (!each.options || [...each.options].some((one) => one.value === old.value)) each.value = old.value;
  }
  if (within) {
    const now = focusable(region);
    (now.find((each) => nameOf(each) === name) || (now[place]?.tagName === within.tagName && now[place]))
      ?.focus?.({ preventScroll: true });
  }
  showTimes(region);
};
const hold = (region, content, markup) => {
  // Rows stay where they are: those that are still there are renewed in place, others wait.
  const known = all("[data-row]", region);
  if (!known.length) { replaceRegion(region, content); return; }
  const fresh = new Map(all("[data-row]", content).map((row) => [row.dataset.row, row]));
  for (const old of known) {
    const row = fresh.get(old.dataset.row);
    fresh.delete(old.dataset.row);
    old.classList.toggle("gone", !row);
    if (row && !old.contains(document.activeElement) && old.innerHTML !== row.innerHTML) {
      const boxes = all("input:checked", old).map((each) => each.value);
      old.replaceChildren(...row.childNodes);
      for (const each of all("input[type=checkbox]", old)) each.checked = boxes.includes(each.value);
      showTimes(old);
    }
  }
  let bar = find(".newer", region);
  if (!fresh.size) { bar?.remove(); return; }
  if (!bar) {
    bar = make("button", "", { type: "button", class: "newer" });
    region.prepend(bar);
  }
  bar.textContent = fresh.size.toLocaleString("en") + " newer – show them";
  bar.onclick = () => "reload" in region.dataset ? location.reload() : replaceRegion(region, parsed(markup));
};
const put = (name, markup, isAnother) => {
  const region = document.getElementById("region-" + name);
  if (!region) return;
  const content = parsed(markup);
  const text = serial(content);
  if (given.get(region.id) === text) { waiting.delete(name); return; }
  const isHeld = isField(document.activeElement) && region.contains(document.activeElement);
  if (isHeld || find("form[data-sent]", region)) {
    waiting.set(name, markup);
    return;
  }
  waiting.delete(name);
  given.set(region.id, text);
  if (region.dataset.region === "hold" && !isAnother) hold(region, content, markup);
  else replaceRegion(region, content);
};
on(document, "focusout", () => setTimeout(() => {
  for (const [name, markup] of [...waiting]) put(name, markup);
}));
