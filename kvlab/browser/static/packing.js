/* Reads what app/components/payload.py packed: JSON, and vectors behind it. */

const VECTORS = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, int32: Int32Array, float32: Float32Array };

const unpacked = new WeakMap();

function unpack(bytes) {
  if (!unpacked.has(bytes)) unpacked.set(bytes, read(bytes));
  return unpacked.get(bytes);
}

function read(bytes) {
  const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const { plain, vectors } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + size)));
  for (const [name, [kind, first, count]] of Object.entries(vectors)) {
    const own = VECTORS[kind], start = 4 + size + first;
    plain[name] = new own(bytes.slice(start, start + count * own.BYTES_PER_ELEMENT).buffer);
  }
  return plain;
}
