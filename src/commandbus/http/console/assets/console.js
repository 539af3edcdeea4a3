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
  // Several deployments may share one host: what is kept of one is under its own place.
  const RECENT = "recent " + new URL(document.currentScript.src).pathname.split("assets/")[0];
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

  // -- what was typed or chosen, and differs from what the server wrote
  const isChanged = (each) => each.type === "hidden" || each.type === "submit" ? false
    : each.options ? [...each.options].some((one) => one.selected !== one.defaultSelected)
      : each.type === "checkbox" || each.type === "radio" ? each.checked !== each.defaultChecked
        : each.value !== each.defaultValue;
  const fields = (within) => all("input, textarea, select", within);
  const isDirty = () => all("main form[method=post]").some((form) => fields(form).some(isChanged));
  const isBox = (each) => each.type === "checkbox" || each.type === "radio";
  const keyOf = (each) => [each.form?.getAttribute("action"), each.name, isBox(each) ? each.value : ""].join(" ");

  // -- regions: replaced whole, but never under a hand
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
    if (!sign?.dataset.url) return;
    const at = asOf ? "as of " + absolute(asOf).slice(11) : "connecting";
    if (live.paused) setState("late", "Paused,", at);
    else if (live.ended) setState("live", "Ended,", at);
    else if (live.isOut) setState("down", "Signed out – shown", at);
    else if (live.problem) setState("down", live.problem + " – shown", at);
    else if (live.tries > 1 || Date.now() - lastSign > 15000) setState("down", "No connection – shown", at);
    else if (Date.now() - lastSign > 8000) setState("late", "Reconnecting,", at);
    else setState("live", live.refused ? "No place for a stream, asks every 5 s," : "Live,", at);
  };

  // -- live: one stream for a visible page, none for a hidden one. A browser has six connections
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
  const poll = async () => {
    try {
      const answer = await fetch(location.href, { headers: { "X-Console-Regions": "poll" }, cache: "no-store" });
      if (answer.redirected || answer.status === 401) { leave(); return; }
      const body = await answer.json();
      lastSign = Date.now();
      if (!answer.ok) live.problem = body.title || "Something failed";
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
  }
  setInterval(showTimes, 1000);
  showTimes();

  // -- filters that answer while one types: the address follows, and all that holds it
  let typing = 0;
  let asked = 0;
  const filter = async (form) => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
    const rest = query.size ? "?" + query : "";
    const address = form.action.split("?")[0] + rest;
    const number = asked += 1;
    const answer = await fetch(address, { headers: { "X-Console-Regions": "1" } }).catch(() => null);
    const body = answer?.ok && await answer.json().catch(() => null);
    if (number !== asked) return; // what was typed since is asked for already
    if (!body) { if (answer) location.href = address; return; }
    history.replaceState(null, "", address);
    const back = find("input[name=back]");
    if (back) back.value = location.pathname + rest;
    if (find("[data-address]")) find("[data-address]").textContent = location.pathname + rest;
    const domain = find("#switch");
    if (domain) domain.value = query.get("domain") || "";
    waiting.clear();
    for (const [name, markup] of Object.entries(body.regions)) put(name, markup, true);
    if (sign?.dataset.url) {
      sign.dataset.url = sign.dataset.url.split("?")[0] + rest;
      live.ended = body.final;
      close();
      connect();
      showState();
    }
  };
  on(document, "input", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (!form) return;
    clearTimeout(typing);
    typing = setTimeout(() => filter(form), 250);
  });

  if (find("#switch")) on(find("#switch"), "change", (event) => {
    // On the page that it leads to, the rest of the filter stays: that of now, not of the first load.
    const address = new URL(event.target.form.action);
    if (address.pathname === location.pathname) address.search = location.search;
    address.searchParams.delete("cursor");
    address.searchParams.set("domain", event.target.value);
    location.href = address.href;
  });

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
  if (find("#sign-in")) stored(RECENT, "[]"); // whoever signs in next does not see where one was
  if (code && location.hash.length > 20) {
    code.value = location.hash.slice(1);
    history.replaceState(null, "", location.pathname + location.search);
    code.form.requestSubmit();
  }

  // -- the end of the session is said before it comes; other tabs may have moved it
  const askEnd = async (headers) => {
    const answer = await fetch(find("#stay").dataset.url, { headers, cache: "no-store" }).catch(() => null);
    if (answer?.redirected || answer?.status === 401) { leave(); return; }
    ends = new Date(answer?.headers.get("X-Session-Ends") || Date.now() + clock.drift + 15000);
  };
  let isAsking = false;
  setInterval(() => {
    const bar = find("#ending");
    if (!bar || !ends || live.isOut) return;
    const left = Math.round((ends - serverNow()) / 1000);
    bar.hidden = left > 120;
    find("span", bar).textContent = Math.max(0, left) + " s";
    if (left < 120 && left % 10 === 0 && !isAsking) {
      isAsking = true;
      askEnd({ "X-Console-Regions": "poll" }).finally(() => { isAsking = false; });
    }
  }, 1000);
  if (find("#stay")) on(find("#stay"), "click", () => askEnd({}));

  // -- on paper: whole times in UTC, and nothing folded
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
  find("[data-focus]")?.focus();
  root.classList.add("js");
})();
