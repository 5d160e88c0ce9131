/* The format of `pack_payload` in kvlab/browser/__init__.py: the header's length in 4 bytes, a JSON header, then the vectors. */

const ARRAY_TYPES = {
  uint8: Uint8Array,
  int8: Int8Array,
  uint16: Uint16Array,
  int16: Int16Array,
  uint32: Uint32Array,
  int32: Int32Array,
  float32: Float32Array,
};

/** @type {WeakMap<Uint8Array, any>} */
const unpacked = new WeakMap();

/**
 * The packed data: vectors as typed arrays, everything else as in JSON. The same bytes return the same object.
 * @param {Uint8Array} bytes
 */
export function unpack(bytes) {
  if (!unpacked.has(bytes)) unpacked.set(bytes, read(bytes));
  return unpacked.get(bytes);
}

/** @param {Uint8Array} bytes */
function read(bytes) {
  const headerSize = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { plain, vectors } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + headerSize)));
  /** @type {[string, [keyof typeof ARRAY_TYPES, number, number]][]} */
  const places = Object.entries(vectors);
  for (const [name, [type, offset, length]] of places) {
    const ArrayType = ARRAY_TYPES[type], start = 4 + headerSize + offset;
    plain[name] = new ArrayType(bytes.slice(start, start + length * ArrayType.BYTES_PER_ELEMENT).buffer);
  }
  return plain;
}
