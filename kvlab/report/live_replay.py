"""A live session as one HTML file that plays without a server or network, or as a looping GIF of it. Torch-free."""

import asyncio
import base64
import html
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from kvlab.browser import read_static
from kvlab.core.errors import UserError
from kvlab.views.base.export import find_browser
from kvlab.views.base.palette import Theme

KINDS = (
    "context_read", "branch_settled", "branch_failed", "held", "merged", "held_changes", "question", "question_again",
    "token", "answer_ended", "went_back",
)  # fmt: skip
KEYS = "Space plays, arrows step, 1 to 6 choose a branch, T the text, F full screen"
HELD = ("no slot", "merged only", "to 10 %", "to 30 %", "to 60 %", "most heads", "all heads")
LEGEND = "".join(f'<span class="word" data-level="{level}">{name}</span>' for level, name in enumerate(HELD))
KL = "".join(f'<span class="kl" data-kl="{level}">{least}</span>' for level, least in enumerate((".01", ".1", "1")))
BODY = f"""<main>
<header><h1></h1><span class="hint">{KEYS}</span></header>
<div class="question"></div>
<div class="branches"></div>
<div class="legend"><span class="whose"></span><span class="chips">own slot {LEGEND}</span>
<span class="chips">KL from {KL} nats</span></div>
<div class="context" tabindex="0" aria-label="Context"></div>
<footer><button class="play" type="button">Play</button>
<input type="range" min="0" value="0" aria-label="Step"><span class="place"></span>
<button class="full" type="button">Full screen</button></footer>
</main>"""

# pixels
WIDTH = 1120
HEIGHT = 630
MOST_FRAMES = 72
COLOURS = 128
PALETTE_FRAMES = 6
FRAME_MS = 120
QUESTION_MS = 1200
LAST_MS = 3500
SECONDS = 180
NO_BROWSER = "A GIF needs Chromium, which was not found: install it (Debian: apt install chromium), or export HTML."
# A picture has no use for controls.
STILL = "footer, .hint { display: none !important; }"

OnFrame = Callable[[int, int], None]


def replay(events: Iterable[Mapping[str, Any]], title: str, theme: Theme = "light") -> str:
    """The session told by `events` (`kvlab.live.events.read_events`) as HTML; it opens at its end.

    Raises UserError if no context has been read yet.
    """
    recorded = list(events)
    texts = next((event["texts"] for event in reversed(recorded) if event.get("kind") == "context_texts"), None)
    if texts is None:
        raise UserError("There is nothing to replay yet: no context has been read.")
    session = {"title": title, "texts": texts, "events": [event for event in recorded if event.get("kind") in KINDS]}
    # "<" could end the element that holds the data.
    data = json.dumps(session, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        (
            f'<!doctype html><html lang="en" data-theme="{theme}"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{html.escape(title)}</title><style>{read_static('live-replay.css')}</style></head><body>",
            BODY,
            f'<script type="application/json" id="session">{data}</script>',
            f"<script>{read_static('live-replay.js')}</script></body></html>",
        )
    )


def live_gif(
    events: Iterable[Mapping[str, Any]], title: str, theme: Theme = "light", on_frame: OnFrame | None = None
) -> bytes:
    """The session told by `events` as a GIF; `on_frame` is called with each frame's number (from 1) and the total.

    Raises UserError if no context has been read yet, or there is no Chromium that draws within `SECONDS`.
    """
    from choreographer.errors import BrowserFailedError

    page = replay(events, title, theme)
    if find_browser() is None:
        raise UserError(NO_BROWSER)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1, "kvlab-live-gif") as worker:
        path = Path(folder) / "replay.html"
        path.write_text(page, encoding="utf-8")
        try:  # a thread of its own: the caller may have a running event loop
            frames = worker.submit(asyncio.run, _pictures(path.as_uri(), on_frame)).result()
        except (TimeoutError, BrowserFailedError) as error:
            raise UserError("Chromium did not draw the replay in time: export HTML instead.") from error
    samples = [picture for picture, _ in frames[:: max(1, len(frames) // PALETTE_FRAMES)]]
    together = Image.new("RGB", (WIDTH, HEIGHT * len(samples)))
    for place, picture in enumerate(samples):
        together.paste(picture, (0, HEIGHT * place))
    palette = together.quantize(COLOURS, dither=Image.Dither.NONE)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture, _ in frames]
    file = io.BytesIO()
    times = [duration for _, duration in frames]
    small[0].save(file, "gif", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=False)
    return file.getvalue()


def frames_of(pauses: Sequence[bool]) -> list[int]:
    """The steps that are drawn: the first, last, every question, and of the others as many as there is room for.

    `pauses` is for each step whether the replay pauses at it.
    """
    fixed = {0, len(pauses) - 1, *(step for step, pause in enumerate(pauses) if pause)}
    others = [step for step in range(len(pauses)) if step not in fixed]
    every = max(1, -(-len(others) // max(1, MOST_FRAMES - len(fixed))))
    return sorted(fixed | set(others[every - 1 :: every]))


async def _pictures(url: str, on_frame: OnFrame | None) -> list[tuple[Image.Image, int]]:
    """Every frame and how long it is shown, in milliseconds; raises TimeoutError after `SECONDS`."""
    from choreographer import Browser

    async with asyncio.timeout(SECONDS), Browser(headless=True) as browser:
        tab = await browser.create_tab(url)
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await tab.send_command("Emulation.setDeviceMetricsOverride", size)

        async def run(script: str) -> Any:
            given = {"expression": script, "returnByValue": True, "awaitPromise": True}
            answer = await tab.send_command("Runtime.evaluate", given)
            return answer["result"]["result"].get("value")

        while not await run("'player' in globalThis"):
            await asyncio.sleep(0.05)
        await run(f"document.head.append(Object.assign(document.createElement('style'), {{textContent: `{STILL}`}}))")
        pauses = await run("player.pauses()")
        steps = frames_of(pauses)
        frames = []
        for number, step in enumerate(steps, 1):
            await run(f"player.show({step})")
            await run("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            taken = await tab.send_command("Page.captureScreenshot", {"format": "png"})
            picture = Image.open(io.BytesIO(base64.b64decode(taken["result"]["data"]))).convert("RGB")
            frames.append((picture, LAST_MS if step == steps[-1] else QUESTION_MS if pauses[step] else FRAME_MS))
            if on_frame is not None:
                on_frame(number, len(steps))
        return frames
