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
  }
  for (const element of all("[data-zone]", within)) element.textContent = zone();
};

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
