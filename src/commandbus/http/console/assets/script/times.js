// Times: the server's clock, the viewer's zone
const clock = { drift: 0, utc: stored("utc") === "1" };
const serverNow = () => Date.now() + clock.drift;
const zone = () => clock.utc || clock.isPaper ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
const absolute = (time) => time.toLocaleString("sv-SE", { timeZone: zone() });
const relative = (time) => {
  const seconds = Math.round((serverNow() - time) / 1000);
  const size = Math.abs(seconds);
  const text = size < 60 ? size + " s" : size < 3600 ? Math.floor(size / 60) + " min"
    : Math.floor(size / 3600) + " h " + Math.floor(size % 3600 / 60) + " min";
  return size < 1 ? "now" : seconds > 0 ? text + " ago" : "in " + text;
};
const showTimes = (within = document) => {
  for (const element of all("time", within)) {
    const time = new Date(element.dateTime);
    const whole = absolute(time) + " " + zone();
    const isNear = !clock.isPaper && Math.abs(serverNow() - time) < 864e5 && !("absolute" in element.dataset);
    const text = isNear ? relative(time) : whole;
    if (element.textContent !== text) element.textContent = text;
    if (element.title !== whole) element.title = whole;
    element.classList.toggle("near", isNear);
  }
  for (const element of all("[data-zone]", within)) element.textContent = zone();
};

// Moments of a filter are typed in the viewer's zone, and sent with it; what nobody changed is sent as it came.
const momentOf = (each) => new Date(each.value + (zone() === "UTC" ? "Z" : ""));
const showMoments = () => {
  for (const each of all("[data-moment]")) {
    const text = absolute(new Date(each.dataset.moment)).replace(" ", "T");
    each.value = text.endsWith(":00") ? text.slice(0, -3) : text;
    each.dataset.shown = each.value;
  }
};
on(document, "formdata", (event) => {
  for (const each of all("input[type=datetime-local]", event.target)) {
    if (!each.value) continue;
    const isSame = each.value === each.dataset.shown;
    event.formData.set(each.name, isSame ? each.dataset.moment : momentOf(each).toISOString());
  }
});
const switchZone = () => {
  for (const each of all("input[type=datetime-local]")) {
    if (!each.value) delete each.dataset.moment;
    else if (each.value !== each.dataset.shown) each.dataset.moment = momentOf(each).toISOString();
  }
  clock.utc = !clock.utc;
  stored("utc", clock.utc ? "1" : "0");
  showMoments();
  showTimes();
  showState();
};
showMoments();

// On paper: whole times in UTC, and nothing folded
let folded = [];
on(window, "beforeprint", () => {
  clock.isPaper = true;
  folded = all("main details:not([open])");
  for (const each of folded) each.open = true;
  showTimes();
});
on(window, "afterprint", () => {
  clock.isPaper = false;
  for (const each of folded) each.open = false;
  showTimes();
});
