// Write a zip file without compression, which photos do not need. At most 65,535 files and 4 GB.
const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});
const UTF8 = 0x0800, VERSION = 20, DATE = 0x21;  // 1 January 1980

export function checksum(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

// Little-endian integers, [value, bytes] each.
function packed(fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += size;
  }
  return view.buffer;
}

// files: { name, blob }. Returns a Blob.
export async function zip(files) {
  const parts = [], directory = [];
  let offset = 0;
  for (const { name, blob } of files) {
    const path = new TextEncoder().encode(name), bytes = new Uint8Array(await blob.arrayBuffer());
    const about = [[VERSION, 2], [UTF8, 2], [0, 2], [0, 2], [DATE, 2], [checksum(bytes), 4], [bytes.length, 4], [bytes.length, 4], [path.length, 2], [0, 2]];
    const header = packed([[0x04034b50, 4], ...about]);
    directory.push(packed([[0x02014b50, 4], [VERSION, 2], ...about, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]]), path);
    parts.push(header, path, blob);
    offset += header.byteLength + path.length + bytes.length;
  }
  const size = directory.reduce((sum, part) => sum + part.byteLength, 0), count = files.length;
  const end = packed([[0x06054b50, 4], [0, 2], [0, 2], [count, 2], [count, 2], [size, 4], [offset, 4], [0, 2]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

// The text of a file in a zip of `zip`.
export async function textIn(archive, wanted) {
  const end = new DataView(await archive.slice(-22).arrayBuffer()), from = end.getUint32(16, true);
  const bytes = await archive.slice(from, from + end.getUint32(12, true)).arrayBuffer(), view = new DataView(bytes);
  for (let at = 0; at < bytes.byteLength; at += 46 + view.getUint16(at + 28, true)) {
    const length = view.getUint16(at + 28, true), offset = view.getUint32(at + 42, true) + 30 + length;
    const name = new TextDecoder().decode(bytes.slice(at + 46, at + 46 + length));
    if (name === wanted) return archive.slice(offset, offset + view.getUint32(at + 20, true)).text();
  }
  throw new Error(`${wanted} is missing`);
}
