"""The page without Gradio's own scripts, which take most of the time of a load.

Gradio renders the page once. Its HTML and CSS, with the arguments that Gradio gives to the page's
script, are then served as one document. `/?gradio` is the page as visitors get it.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

GRADIO = "/?gradio"
"""Added to the URL of a server: the page as visitors get it."""
STUB = """export function start(element, props) {
  element.dataset.start = "";
  window.props = JSON.stringify(props);
}"""
START = """<script type="module">
  const { start } = await import(new URL("page/static/page.js", document.baseURI).href);
  start(document.querySelector("[data-start]"), PROPS);
</script></body>"""
INLINE = """async () => {
  for (const link of document.querySelectorAll("link[rel=stylesheet]")) {
    const style = document.createElement("style");
    style.textContent = await (await fetch(link.href)).text();
    link.replaceWith(style);
  }
  document.querySelectorAll("script, link").forEach((element) => element.remove());
}"""


class FrozenPage:
    """Middleware that answers `/` with the frozen page, once there is one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.html = app, ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if self.html and (scope.get("path"), scope.get("query_string")) == ("/", b""):
            app = HTMLResponse(self.html, headers={"Cache-Control": "no-store"})
        await app(scope, receive, send)

    def freeze(self, browser: Any, url: str) -> None:
        """Let Gradio render the page."""
        with browser.new_context() as context:
            tab = context.new_page()
            stub = {"body": STUB, "content_type": "text/javascript"}
            tab.route("**/page/static/page.js", lambda route: route.fulfill(**stub))
            tab.goto(url)
            tab.wait_for_function("window.props")
            tab.evaluate(INLINE)
            props = tab.evaluate("window.props").replace("</", "<\\/")
            self.html = tab.content().replace("</body>", START.replace("PROPS", props))
