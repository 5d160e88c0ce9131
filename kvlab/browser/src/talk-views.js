/* The views of a talk's slides (kvlab/report/static/deck.js), which reads `views`. */

import { mount } from "./mount.js";
import { TokenStrip } from "./tokenstrip/token-strip.js";
import { TokenText } from "./tokentext.js";

window.views = { tokenstrip: mount(TokenStrip), tokentext: mount(TokenText) };
