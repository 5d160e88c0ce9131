import { mount } from "../mount.js";
import { deliverWithShared } from "../shared-data.js";
import { TokenText } from "../tokentext.js";

export default mount(TokenText, deliverWithShared);
