/* The replay of a live session as one HTML file (kvlab/report/live_replay.py). */

import { find } from "./dom.js";
import { Player } from "./replay/player.js";

const player = new Player(find(document, "main"), JSON.parse(find(document, "#session").textContent ?? ""));
Object.assign(globalThis, { player }); // for kvlab/report/live_gif.py, which takes pictures of the steps
