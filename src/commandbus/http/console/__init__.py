"""The console: a web page for operators, approvers and developers, under /console.

Pages are rendered on the server. One script of ours makes them live; without it everything works.

How to add a screen. `screens/settings.py` with `templates/settings/` is an example to copy.

1. `screens/<name>.py` has `screen = Screen(...)`. It is found by itself: no other file changes. Its
   entry in the navigation is its title, `order` (0: none), `group`, `icon` (a symbol of
   assets/icons.svg), `scope`, `shortcut`, and `count`: an async function of the view whose number
   stands beside the title, live. It must be one cheap query; it is asked every 5 seconds at most,
   for each user, or once for all with the same rights (`is_count_shared=True`).
2. A page is `@screen.page("/path/{domain}", live=2.0)` on
   `async def show(view: Show, domain: DomainPath, status: ... = None) -> Page`. Parameters of path
   and query are declared as in `http/routes`: same names, same checks. It reads through `view.bus`
   with `view.viewer`, within 2 seconds, and returns
   `view.page("<name>/index.html", "Title", rows=rows)`. The first page of a screen is called as the
   screen, others `<screen>.<function>`; `view.url(name, **values)` and, in templates,
   `url(name, …)` make addresses: what the path does not name becomes the query.
   `view.here_with(status="x")` is this page with another filter, from its first page on.
3. A template extends `base.html` and has the block `content`. What lives is inside
   `<div id="region-x" data-region>{% block region_x %}…{% endblock %}</div>`: that block alone is
   rendered again every `live` seconds, once for all who look with the same rights, and sent if it
   changed. `data-region="hold"` is for lists: rows have `data-row` (`ui.table(key=…)`), never move,
   and new ones wait behind a bar. `personal=True`: the page differs between users with the same
   rights (only then may it use `view.caller.user_id`). `view.page(final=True)` ends the stream.
   A region is rendered alone, so what it imports or sets is inside its block. Macros are
   `ui.<name>` (templates/macros.html); values are always escaped; no style attributes.
4. An action is `@screen.action("/path", scope=Scope.OPERATE)` on
   `async def retry(view: Show, form: Fields) -> Response | Page`. Its form has
   `{{ csrf(url("name")) }}`, or is `ui.post(url(…), "Stop")`. After success
   `return view.to("bulk", "Stopped.")` (redirect, notice); a Page may be returned too, for a
   further step. `templates/confirm.html` is the page that asks before something happens.
   `view.actor` is who did it, for the audit.
5. Errors are raised as in the API (`Problem`, CommandBusError): the frame stays and says what is
   wrong. `view.demand(scope, what)` and `view.may(scope, domain)` decide rights; a button for
   which a right is missing is shown disabled, with the scope (`ui.post`, `ui.ask` do it).
   `bus.tokens.sessions.list(user)` and `sign_in.end_session(view, id)` are for lists of sessions.
6. Tests are in `tests/console/`: `async with console(bus, "read") as page: await
   page.get("/settings")`. Look at your page: `commandbus serve --auth none`, at 390, 820 and
   1440 px, in both themes.
"""
