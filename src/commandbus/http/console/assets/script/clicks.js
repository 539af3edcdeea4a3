// Copy
const copied = async (text) => {
  // Over plain HTTP, but for the own machine, browsers have no clipboard.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make("textarea", text);
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  return before.focus();
};
on(document, "click", (event) => {
  const hit = (what) => event.target.closest(what);
  const button = hit(".copy");
  if (button) {
    const { copy, copyFrom } = button.dataset;
    // An id is whole before its button or in its row: fifty of them twice would be kilobytes.
    const text = copyFrom ? find("#" + copyFrom).textContent
      : copy || button.previousElementSibling?.title || hit("[data-row]").dataset.row;
    copied(text).then(() => {
      say("Copied");
      button.classList.add("did");
      setTimeout(() => button.classList.remove("did"), 1500);
    });
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
