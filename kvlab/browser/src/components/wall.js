import { mount } from "../mount.js";
import { deliverWithShared } from "../shared-data.js";
import { CacheWall } from "../wall/cache-wall.js";

export default mount(CacheWall, deliverWithShared);
