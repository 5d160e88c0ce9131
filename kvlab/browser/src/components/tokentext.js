import { mount } from "../mount.js";
import { deliverWithTexts } from "../shared-texts.js";
import { TokenText } from "../tokentext.js";

export default mount(TokenText, deliverWithTexts);
