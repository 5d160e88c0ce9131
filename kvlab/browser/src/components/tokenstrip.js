import { mount } from "../mount.js";
import { deliverWithShared } from "../shared-data.js";
import { TokenStrip } from "../tokenstrip/token-strip.js";

export default mount(TokenStrip, deliverWithShared);
