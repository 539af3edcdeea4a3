// The state of the connection, in words
const sign = find("#live");
const say = (text) => {
  const place = find("#announce");
  if (place) place.textContent = text;
};
let said = 0;
const announce = (text) => {
  if (Date.now() - said < 10000) return;
  said = Date.now();
  say(text);
};
let asOf = null;
let lastSign = Date.now();
const setState = (state, word, at) => {
  const text = word + " " + at;
  const isDown = state === "down";
  if (sign.dataset.state !== state && isDown) announce(text);
  sign.dataset.state = state;
  find("[data-word]", sign).textContent = word;
  find("[data-text]", sign).textContent = at;
  root.classList.toggle("stale", isDown);
  for (const each of all("[data-region] button, [data-region] input, main form button")) {
    if (isDown && !each.disabled) { each.disabled = true; each.dataset.down = ""; }
    if (!isDown && "down" in each.dataset) { each.disabled = false; delete each.dataset.down; }
  }
};
const seen = (time) => {
  lastSign = Date.now();
  if (!time) return;
  asOf = new Date(time);
  setClock(30000);
};
// What the server said is some seconds old when it is said again: only more is another clock.
const setClock = (most) => {
  const drift = asOf - Date.now();
  if (drift > 2000 || drift < -most) clock.drift = drift;
  const place = find("[data-clock]");
  if (!place) return;
  const minutes = Math.round(Math.abs(clock.drift) / 60000);
  place.textContent = minutes ? "The clock of this browser is " + minutes + " min " + (clock.drift > 0 ? "late" : "early") + "; times are those of the service." : "";
};
const showState = () => {
  const at = asOf ? "as of " + absolute(asOf).slice(11) : "connecting";
  if (!sign) return;
  if (!sign.dataset.url) find("[data-text]", sign).textContent = at;
  else if (live.paused) setState("late", "Paused,", at);
  else if (live.ended) setState("live", "Ended,", at);
  else if (live.isOut) setState("down", "Signed out – shown", at);
  else if (live.problem) setState("down", live.problem + " – shown", at);
  else if (live.tries > 1 || Date.now() - lastSign > 15000) setState("down", "No connection – shown", at);
  else if (Date.now() - lastSign > 8000) setState("late", "Reconnecting,", at);
  else setState("live", live.refused ? "No place for a stream, asks every 5 s," : "Live,", at);
};

// Live: one stream for a visible page, none for a hidden one. A browser has six connections
// for a host, so at most four windows have a stream; others ask now and then.
const live = { paused: false, ended: false, isOut: false, problem: "", refused: 0, source: null, release: null, wanted: false, tries: 0, timer: 0 };
let ends = root.dataset.ends && new Date(root.dataset.ends);
// The sign-in is a load away; what somebody has typed is worth more than showing it at once.
const leave = () => {
  if (!isDirty()) { location.reload(); return; }
  live.isOut = true;
  close();
  const bar = find("#ending");
  if (bar && !live.told) {
    live.told = true;
    bar.hidden = false;
    find("div", bar).textContent = "Your session has ended. What you typed stays on this page until you load it again: copy it, then sign in.";
  }
  showState();
};
const take = (data) => {
  if (data.ends) ends = new Date(data.ends);
  live.problem = "";
  live.tries = 0;
  seen(data.as_of);
  for (const [name, markup] of Object.entries(data.regions || {})) put(name, markup);
  showState();
};
const close = () => {
  live.source?.close();
  live.source = null;
  live.release?.();
  live.release = null;
  clearTimeout(live.timer);
};
const again = (seconds) => {
  clearTimeout(live.timer);
  live.timer = setTimeout(connect, seconds * 1000);
};
const slot = (number = 0) => new Promise((give) => {
  if (!navigator.locks || number > 3) { give(navigator.locks ? null : () => {}); return; }
  navigator.locks.request("commandbus-live-" + number, { ifAvailable: true }, (lock) => {
    if (!lock) { slot(number + 1).then(give); return undefined; }
    return new Promise((release) => give(release));
  });
});
const problemOf = (data) => data.code === "UNAVAILABLE" ? "The database does not answer" : data.title || "Something failed";
const poll = async () => {
  try {
    const answer = await fetch(location.href, { headers: { "X-Console-Regions": "poll" }, cache: "no-store" });
    if (answer.redirected || answer.status === 401) { leave(); return; }
    const body = await answer.json();
    lastSign = Date.now();
    if (!answer.ok) live.problem = problemOf(body);
    else {
      take(body);
      if (body.final) { live.ended = true; showState(); return; }
    }
  } catch { live.tries += 1; }
  showState();
  again(Math.min(40, 5 * 2 ** live.tries));
};
async function connect() {
  if (!live.wanted || live.paused || live.ended || live.source) return;
  live.release ||= await slot();
  if (!live.wanted || live.paused) { close(); return; }
  // A stream that was refused is asked for again after a minute; until then one asks as without.
  if (!live.release || Date.now() - live.refused < 60000) { poll(); return; }
  const source = live.source = new EventSource(sign.dataset.url);
  const listen = (kind, act) => on(source, kind, (event) => act(JSON.parse(event.data)));
  on(source, "open", () => { live.refused = 0; });
  listen("regions", take);
  listen("beat", take);
  listen("counts", (data) => all(".count").forEach((each) => {
    const number = data.counts[each.id.slice(6)];
    each.hidden = !number;
    each.textContent = (number || 0).toLocaleString("en");
  }));
  listen("problem", (data) => {
    live.problem = problemOf(data);
    lastSign = Date.now();
    showState();
  });
  listen("end", (data) => {
    take(data);
    live.ended = true;
    close();
    announce("This has ended");
    showState();
  });
  source.onerror = () => {
    // The browser connects again by itself after a cut; after a refusal it does not.
    if (source.readyState !== EventSource.CLOSED) {
      live.tries += 1;
      lastSign = Math.min(lastSign, Date.now() - 8001);
      showState();
      return;
    }
    source.close();
    live.source = null;
    live.refused = Date.now();
    poll();
  };
}
const visibility = () => {
  if (document.hidden) {
    live.timer = setTimeout(() => { live.wanted = false; close(); }, 3000);
  } else if (!live.wanted) {
    clearTimeout(live.timer);
    live.wanted = true;
    lastSign = Date.now();
    connect();
  } else clearTimeout(live.timer);
};
const pauseLive = () => {
  if (!sign?.dataset.url) return;
  live.paused = !live.paused;
  find("#live-pause")?.setAttribute("aria-pressed", live.paused);
  if (live.paused) close();
  else { lastSign = Date.now(); connect(); }
  showState();
};
if (sign) {
  asOf = new Date(sign.dataset.asOf);
  setClock(30000);
}
if (sign?.dataset.url) {
  on(window, "pagehide", close);
  on(window, "pageshow", (event) => { if (event.persisted) { live.wanted = false; visibility(); } });
  on(document, "visibilitychange", visibility);
  visibility();
  setInterval(showState, 1000);
} else showState();
setInterval(showTimes, 1000);
showTimes();
