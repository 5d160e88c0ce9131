import { mount } from "../mount.js";
import { deliverWithTexts } from "../shared-texts.js";
import { TokenStrip } from "../tokenstrip/token-strip.js";

export default mount(TokenStrip, deliverWithTexts);
