// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/binary-payload.js src/components/texts.js src/shared-texts.js
// SHA-256 of the sources: 5aa4c9bf51667e31feda604a1fb56e8f5139797300fa564a3a8ca1148cbbd02c
// SHA-256 of the code: 9764c6ed2acaaa82b505b30085e0fe1d71c1d2da4d43d18a0aa2fca557eeb68c
// src/binary-payload.js
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
