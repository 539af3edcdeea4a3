// Filters that answer while one types: the address follows, and all that holds it
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
  for (const back of all("input[name=back]")) back.value = location.pathname + rest;
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

// Forms: one click, one request
on(document, "submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) { event.preventDefault(); return; }
  form.dataset.sent = "1";
  if (event.submitter && !event.submitter.dataset.plain) event.submitter.textContent = "asking…";
});
on(window, "pageshow", () => all("form[data-sent]").forEach((form) => delete form.dataset.sent));
