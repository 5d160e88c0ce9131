// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/components/texts.js src/payload.js src/shared-texts.js
// SHA-256 of the sources: 17050fca1c7c8e8aecbae08a0f5a3976f86c57ac86b2e974f7e34ba855d1c416
// SHA-256 of the code: c46663977a8fcdb7bb27210e717239839621a2a40e65e5d4e57edf330191c1f7
// src/payload.js
var ARRAY_TYPES = {
  uint8: Uint8Array,
  int8: Int8Array,
  uint16: Uint16Array,
  int16: Int16Array,
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

// src/shared-texts.js
var MAX_TEXTS = 4;
var store = () => window.kvlabTexts ??= { texts: /* @__PURE__ */ new Map(), waiting: /* @__PURE__ */ new Map() };
function storeTexts(name, tokenTexts) {
  const { texts, waiting } = store();
  texts.delete(name);
  texts.set(name, tokenTexts);
  for (const oldest of texts.keys()) if (texts.size > MAX_TEXTS) texts.delete(oldest);
  for (const [view, { data, draw }] of [...waiting]) drawWithTexts(view, data, draw);
}
function drawWithTexts(view, data, draw) {
  const { texts, waiting } = store();
  const tokenTexts = data.texts ?? texts.get(data.textsName ?? "");
  if (!tokenTexts) {
    waiting.set(view, { data, draw });
    return;
  }
  waiting.delete(view);
  data.texts = tokenTexts;
  draw(data);
}

// src/components/texts.js
function receiveTexts({ data }) {
  const { name, texts } = unpack(data);
  storeTexts(name, texts);
}
export {
  receiveTexts as default
};
