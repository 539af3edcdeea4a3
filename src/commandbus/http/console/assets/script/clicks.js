// Copy
on(document, "click", (event) => {
  const hit = (what) => event.target.closest(what);
  const button = hit(".copy");
  if (button) {
    const { copy, copyFrom } = button.dataset;
    // An id is whole before its button or in its row: fifty of them twice would be kilobytes.
    const text = copyFrom ? find("#" + copyFrom).textContent
      : copy || button.previousElementSibling?.title || hit("[data-row]").dataset.row;
    // Plain HTTP is for the own machine, where browsers have a clipboard too.
    navigator.clipboard?.writeText(text).then(() => say("Copied"));
    return;
  }
  const chooser = hit("[data-choose-all]");
  if (chooser) all(`input[name="${CSS.escape(chooser.dataset.chooseAll)}"]`).forEach((box) => { box.checked = chooser.checked; });
  if (hit("[data-utc]")) switchZone();
  if (hit("[data-opens]")) {
    event.preventDefault();
    open(find(hit("[data-opens]").dataset.opens));
  }
  if (hit("#live-pause")) pauseLive();
  if (hit("[data-closes]")) hit("dialog").close();
  if (hit("#keys-switch")) {
    keys.on = !keys.on;
    stored("keys", keys.on ? "1" : "0");
    hit("#keys-switch").checked = keys.on;
  }
});
const open = (dialog) => {
  if (!dialog || dialog.open) return;
  dialog.showModal();
  find("input", dialog)?.select();
};
