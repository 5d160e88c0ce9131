// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/shared.js src/payload.js src/shared-data.js
// SHA-256 of the sources: ac40758ca35c805fd33b4e34af9fab3390fcb011f3e83f4d129d9708844d73d2
// SHA-256 of the code: 7acb54d837139388766bbe99ea5cc3150b536581c0daefc00b53c5183f4d0290
// src/payload.js
var ARRAY_TYPES = {
  uint8: Uint8Array,
  int8: Int8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array
};
var unpacked = /* @__PURE__ */ new WeakMap();
function unpack(bytes) {
  if (!unpacked.has(bytes)) unpacked.set(bytes, read(bytes));
  return unpacked.get(bytes);
}
function read(bytes) {
  const headerSize = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { plain, vectors } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerSize)));
  const places = Object.entries(vectors);
  for (const [name, [type, offset, length]] of places) {
    const ArrayType = ARRAY_TYPES[type], start = 4 + headerSize + offset;
    plain[name] = new ArrayType(bytes.slice(start, start + length * ArrayType.BYTES_PER_ELEMENT).buffer);
  }
  return plain;
}

// src/shared-data.js
var MAX_VALUES = 6;
var store = () => window.kvlabShared ??= { values: /* @__PURE__ */ new Map(), waiting: /* @__PURE__ */ new Map() };
function storeShared(name, value) {
  const { values, waiting } = store();
  values.delete(name);
  values.set(name, value);
  for (const oldest of values.keys()) if (values.size > MAX_VALUES) values.delete(oldest);
  for (const [view, { data, draw }] of [...waiting]) drawWithShared(view, data, draw);
}
function drawWithShared(view, data, draw) {
  const { values, waiting } = store(), fields = Object.entries(data.shared ?? {});
  if (fields.some(([, name]) => !values.has(name))) {
    waiting.set(view, { data, draw });
    return;
  }
  waiting.delete(view);
  Object.assign(data, Object.fromEntries(fields.map(([field, name]) => [field, values.get(name)])));
  draw(data);
}

// src/components/shared.js
function receiveShared({ data }) {
  const { name, value, ...vectors } = unpack(data);
  storeShared(name, value ?? vectors);
}
export {
  receiveShared as default
};
