// The console's only script. Pages work without it; with it they are live, and quicker to use.
"use strict";
(() => {
  const root = document.documentElement;
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const on = (target, kind, act) => target.addEventListener(kind, act);
  const make = (tag, text, attributes = {}) => {
    const found = document.createElement(tag);
    if (text) found.textContent = text;
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    return found;
  };
  const stored = (name, value) => {
    try {
      if (value === undefined) return localStorage.getItem("commandbus." + name);
      localStorage.setItem("commandbus." + name, value);
    } catch { /* a browser that keeps nothing */ }
    return null;
  };
  const isField = (element) => element?.matches?.("input:not([type=checkbox],[type=radio]), textarea, select, [contenteditable]");

  // -- markup of the server: the one place that makes elements of it
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("console", { createHTML: (markup) => markup })
    : { createHTML: (markup) => markup };
  const parsed = (markup) => {
    const holder = document.createElement("template");
    holder.innerHTML = policy.createHTML(markup);
    return holder.content;
  };

  // -- times: the server's clock, the viewer's zone
  const clock = { drift: 0, utc: stored("utc") === "1" };
  const serverNow = () => Date.now() + clock.drift;
  const zone = () => clock.utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone;
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
      const isNear = Math.abs(serverNow() - time) < 864e5 && !("absolute" in element.dataset);
      const text = isNear ? relative(time) : whole;
      if (element.textContent !== text) element.textContent = text;
      if (element.title !== whole) element.title = whole;
    }
    for (const element of all("[data-zone]", within)) element.textContent = zone();
  };

  // -- regions: replaced whole, but never under a hand
  const waiting = new Map();
  const replaceRegion = (region, content) => {
    const nameOf = (each) => each.id || find("summary", each)?.textContent;
    const open = new Set(all("details[open]", region).map(nameOf));
    const valueOf = (each) => each.name + "=" + each.value;
    const chosen = new Set(all("input:checked", region).map(valueOf));
    const linkOf = (each) => each.id || each.getAttribute("href");
    const focused = region.contains(document.activeElement) && linkOf(document.activeElement);
    region.replaceChildren(content);
    for (const each of all("details", region)) if (open.has(nameOf(each))) each.open = true;
    for (const each of all("input[type=checkbox]", region)) if (chosen.has(valueOf(each))) each.checked = true;
    if (focused) all("a, button, [id]", region).find((each) => linkOf(each) === focused)?.focus({ preventScroll: true });
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
  const put = (name, markup) => {
    const region = document.getElementById("region-" + name);
    if (!region) return;
    if (isField(document.activeElement) && region.contains(document.activeElement)) {
      waiting.set(name, markup);
      return;
    }
    waiting.delete(name);
    if (region.dataset.region === "hold") hold(region, parsed(markup), markup);
    else replaceRegion(region, parsed(markup));
  };
  on(document, "focusout", () => setTimeout(() => {
    for (const [name, markup] of [...waiting]) put(name, markup);
  }));

  // -- the state of the connection, in words
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
    clock.drift = asOf - Date.now() > 2000 || Date.now() - asOf > 30000 ? asOf - Date.now() : clock.drift;
  };
  const showState = () => {
    if (!sign?.dataset.url) return;
    const at = asOf ? "as of " + absolute(asOf).slice(11) : "connecting";
    if (live.paused) setState("late", "Paused,", at);
    else if (live.ended) setState("live", "Ended,", at);
    else if (live.problem) setState("down", live.problem + " – shown", at);
    else if (live.tries > 1 || Date.now() - lastSign > 15000) setState("down", "No connection – shown", at);
    else if (Date.now() - lastSign > 8000) setState("late", "Reconnecting,", at);
    else setState("live", "Live,", at);
  };

  // -- live: one stream for a visible page, none for a hidden one. A browser has six connections
  // for a host, so at most four windows have a stream; others ask now and then.
  const live = { paused: false, ended: false, problem: "", source: null, release: null, wanted: false, tries: 0, timer: 0 };
  const take = (data) => {
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
  const poll = async () => {
    try {
      const answer = await fetch(location.href, { headers: { "X-Console-Regions": "poll" }, cache: "no-store" });
      if (answer.redirected || answer.status === 401) { location.reload(); return; }
      const body = await answer.json();
      if (!answer.ok) live.problem = body.title || "Something failed";
      else {
        take({ regions: body.regions, as_of: new Date().toISOString() });
        if (body.final) { live.ended = true; showState(); return; }
      }
      lastSign = Date.now();
    } catch { live.tries += 1; }
    showState();
    again(Math.min(40, 5 * 2 ** live.tries));
  };
  async function connect() {
    if (!live.wanted || live.paused || live.ended || live.source) return;
    live.release ||= await slot();
    if (!live.wanted || live.paused) { close(); return; }
    if (!live.release) { poll(); return; }
    const source = live.source = new EventSource(sign.dataset.url);
    const listen = (kind, act) => on(source, kind, (event) => act(JSON.parse(event.data)));
    listen("regions", take);
    listen("beat", take);
    listen("counts", (data) => all(".count").forEach((each) => {
      const number = data.counts[each.id.slice(6)];
      each.hidden = !number;
      each.textContent = (number || 0).toLocaleString("en");
    }));
    listen("problem", (data) => {
      live.problem = data.code === "UNAVAILABLE" ? "The database does not answer" : data.title;
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
      live.tries += 1;
      // The browser connects again by itself after a cut; after a refusal it does not.
      lastSign = Math.min(lastSign, Date.now() - 8001);
      showState();
      if (source.readyState !== EventSource.CLOSED) return;
      source.close();
      live.source = null;
      fetch(location.href, { method: "HEAD", redirect: "manual", cache: "no-store" }).then((answer) => {
        if (answer.type === "opaqueredirect" || answer.status === 401) location.reload();
      }).catch(() => {});
      again(Math.min(30, 2 ** live.tries) * (0.5 + Math.random()));
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
  if (sign?.dataset.url) {
    asOf = new Date(sign.dataset.asOf);
    clock.drift = asOf - Date.now();
    if (Math.abs(clock.drift) < 30000) clock.drift = 0;
    on(window, "pagehide", close);
    on(window, "pageshow", (event) => { if (event.persisted) { live.wanted = false; visibility(); } });
    on(document, "visibilitychange", visibility);
    visibility();
    setInterval(showState, 1000);
  }
  setInterval(showTimes, 1000);
  showTimes();

  // -- filters that answer while one types: the address follows
  let typing = 0;
  const filter = async (form) => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const address = form.action.split("?")[0] + (query.size ? "?" + query : "");
    const answer = await fetch(address, { headers: { "X-Console-Regions": "1" } }).catch(() => null);
    if (!answer?.ok) { if (answer) location.href = address; return; }
    const body = await answer.json();
    history.replaceState(null, "", address);
    for (const [name, markup] of Object.entries(body.regions)) {
      const region = document.getElementById("region-" + name);
      if (region && !region.contains(form)) replaceRegion(region, parsed(markup));
    }
    if (sign?.dataset.url) {
      sign.dataset.url = sign.dataset.url.split("?")[0] + (query.size ? "?" + query : "");
      close();
      connect();
    }
  };
  on(document, "input", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => filter(form), 250);
  });

  if (find("#switch")) on(find("#switch"), "change", (event) => event.target.form.requestSubmit());

  // -- forms: one click, one request
  on(document, "submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
    if (event.submitter && !event.submitter.dataset.plain) event.submitter.textContent = "asking…";
  });
  on(window, "pageshow", () => all("form[data-sent]").forEach((form) => delete form.dataset.sent));

  // -- copy
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
    if (hit("[data-utc]")) {
      clock.utc = !clock.utc;
      stored("utc", clock.utc ? "1" : "0");
      showTimes();
    }
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

  // -- palette: screens and recent places here; an id is asked of the server
  const palette = find("#palette");
  const recent = () => JSON.parse(stored("recent") || "[]");
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
      stored("recent", JSON.stringify([place, ...recent().filter((each) => each.href !== place.href)].slice(0, 8)));
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

  // -- keys: none changes anything but what is seen; none acts in a field
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
  // -- a code in the fragment, which no server and no log sees, signs in
  const code = find("#code");
  if (code && location.hash.length > 20) {
    code.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
    code.form.requestSubmit();
  }

  // -- the end of the session is said before it comes
  let ends = root.dataset.ends && new Date(root.dataset.ends);
  setInterval(() => {
    const bar = find("#ending");
    if (!bar || !ends) return;
    const left = Math.round((ends - serverNow()) / 1000);
    if (left < -2) { location.reload(); return; }
    bar.hidden = left > 120;
    find("span", bar).textContent = Math.max(0, left) + " s";
  }, 1000);
  if (find("#stay")) on(find("#stay"), "click", async () => {
    const answer = await fetch(find("#stay").dataset.url, { method: "HEAD", cache: "no-store" });
    ends = new Date(answer.headers.get("X-Session-Ends") || ends);
  });
  find("[data-focus]")?.focus();
  root.classList.add("js");
})();
