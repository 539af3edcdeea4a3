// Keys: none changes anything but what is seen; none acts in a field
const keys = { on: stored("keys") !== "0", leader: 0 };
const box = find("#keys-switch");
if (box) box.checked = keys.on;
const move = (step) => {
  const rows = all("main tbody tr");
  if (!rows.length) return;
  const at = rows.findIndex((each) => "at" in each.dataset);
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
  if (rows[at]) delete rows[at].dataset.at;
  next.dataset.at = "";
  next.scrollIntoView({ block: "nearest" });
  find("a, button, input", next)?.focus({ preventScroll: true });
};
on(document, "keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    open(palette);
    return;
  }
  if (!keys.on || event.ctrlKey || event.metaKey || event.altKey || isField(event.target) || find("dialog[open]")) return;
  const row = find("main tr[data-at]");
  if (Date.now() - keys.leader < 1500) {
    keys.leader = 0;
    const link = find(`.nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); return; }
  }
  const acts = {
    "/": () => open(palette),
    "?": () => open(find("#help")),
    g: () => { keys.leader = Date.now(); },
    j: () => move(1),
    k: () => move(-1),
    x: () => { const choice = row && find("input[type=checkbox]", row); if (choice) choice.checked = !choice.checked; },
    ".": () => find(".newer")?.click(),
    p: pauseLive,
  };
  if (Object.hasOwn(acts, event.key)) {
    event.preventDefault();
    acts[event.key]();
  }
});
