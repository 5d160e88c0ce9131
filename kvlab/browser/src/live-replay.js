/* The replay of a live session as one HTML file (kvlab/report/live_replay.py). */

import { find } from "./dom.js";
import { Player } from "./replay/player.js";

new Player(find(document, "main"), JSON.parse(find(document, "#session").textContent ?? ""));
