// A code in the fragment, which no server and no log sees, signs in
const code = find("#code");
if (find("#sign-in")) stored(RECENT, "[]"); // whoever signs in next does not see where one was
if (code && location.hash.length > 20) {
  code.value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  code.form.requestSubmit();
}

// The end of the session is said before it comes; other tabs may have moved it
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
