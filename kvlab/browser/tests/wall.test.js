import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { BOTH, changedAt, countCodes, DifferenceCells, NEITHER, ONLY_A, ONLY_B, RunCells, unpackFates, UNSEEN } from "../src/wall/cells.js";
import { Grid, pixelEdges, pixelsOf } from "../src/wall/geometry.js";

const { wall } = JSON.parse(readFileSync(new URL("fixtures.json", import.meta.url), "utf8"));
const HEADS = 4, TOKENS = 8;
const data = {
  first: Uint8Array.from(wall.first),
  readBy: Uint32Array.from(wall.readBy),
  changesBy: Uint32Array.from(wall.changesBy),
  changeCells: Uint32Array.from(wall.changeCells),
  changeFates: Uint8Array.from(wall.changeFates),
};

/** Codes as Python gives the fates of the tokens read by a step. */
function expected(index) {
  const read = wall.readBy[index], fates = wall.fates[index];
  return Array.from({ length: HEADS * TOKENS }, (_, cell) => {
    const position = cell % TOKENS;
    return position < read ? fates[Math.floor(cell / TOKENS) * read + position] : UNSEEN;
  });
}

const counted = (codes) => [0, 1, 2, 3, 4].map((code) => codes.filter((one) => one === code).length);

test("cells at every step are Python's fates, in any order of steps", () => {
  const cells = new RunCells(data, HEADS);
  for (const index of [0, 1, 2, 3, 2, 1, 0, 3, 0, 2]) {
    cells.go(index);
    assert.deepEqual([...cells.codes], expected(index), `step ${index}`);
    assert.deepEqual(cells.totals, counted(expected(index)));
  }
});

test("every cell that changes is announced", () => {
  const cells = new RunCells(data, HEADS);
  cells.go(0);
  for (const [from, to] of [[0, 3], [3, 1], [1, 2]]) {
    const before = [...cells.codes], changed = new Set();
    cells.go(to, (cell) => changed.add(cell));
    const differs = [...cells.codes].flatMap((code, cell) => (code === before[cell] ? [] : [cell]));
    assert.ok(differs.length > 0, `${from} to ${to}`);
    for (const cell of differs) assert.ok(changed.has(cell), `cell ${cell} from ${from} to ${to}`);
  }
});

test("the difference of two runs has own slots in both, one or neither", () => {
  const other = { ...data, first: new Uint8Array(data.first.length), changesBy: new Uint32Array(4), changeCells: new Uint32Array(0), changeFates: new Uint8Array(0) };
  const cells = new DifferenceCells(new RunCells(data, HEADS), new RunCells(other, HEADS));
  for (const index of [0, 3, 1]) {
    cells.go(index);
    const codes = expected(index).map((code) => (code === UNSEEN ? UNSEEN : code > 1 ? ONLY_B : BOTH)); // the other keeps all
    assert.deepEqual([...cells.codes], codes);
    assert.deepEqual(cells.totals, counted(codes));
  }
  const swapped = new DifferenceCells(new RunCells(other, HEADS), new RunCells(data, HEADS));
  swapped.go(0);
  assert.equal(swapped.codes[1], ONLY_A);
  const both = new DifferenceCells(new RunCells(data, HEADS), new RunCells(data, HEADS));
  both.go(0);
  assert.equal(both.codes[1], NEITHER);
});

test("a cell's last change is found, and cells of a head are counted", () => {
  const cells = new RunCells(data, HEADS);
  cells.go(3);
  assert.equal(changedAt(data, 5, 3), 1);
  assert.equal(changedAt(data, 0, 2), -1);
  assert.equal(changedAt(data, 0, 3), 3);
  assert.deepEqual(countCodes(cells, [3]), counted(expected(3).slice(24)));
});

test("four fates are in a byte", () => {
  assert.deepEqual([...unpackFates(Uint8Array.from(wall.packed), 5)], [3, 2, 1, 0, 3]);
});

for (const [layers, heads, tokens, width] of [[6, 4, 1500, 1100], [30, 3, 738, 960], [32, 32, 33024, 1400], [80, 8, 54, 700], [1, 1, 3, 300]]) {
  test(`every cell of ${layers} x ${heads} heads and ${tokens} tokens is found where it is drawn`, () => {
    const grid = new Grid(layers, heads, tokens, width);
    for (const view of [grid.whole, grid.viewOf(layers * heads - 1), grid.zoomed(grid.whole, 7, width / 3, 100)]) {
      for (const head of [grid.visibleHeads(view)[0], grid.visibleHeads(view).at(-1)]) {
        for (let position = 0; position < tokens; position += Math.max(1, Math.floor(tokens / 37))) {
          const box = grid.cellBox(head, position, view), x = box.x + box.width / 2, y = box.y + box.height / 2;
          if (x <= grid.left || x >= grid.left + grid.width || y <= grid.top || y >= grid.top + grid.height) continue;
          assert.deepEqual(grid.cellAt(x, y, view), { head, position });
        }
      }
    }
    assert.equal(grid.visibleHeads(grid.whole).length, layers * heads);
    assert.equal(grid.cellAt(2, 2, grid.whole), null);
  });
}

test("zooming keeps the point under the pointer, and the wall in view", () => {
  const grid = new Grid(30, 3, 738, 960), view = grid.zoomed(grid.whole, 5, 400, 120);
  const before = grid.cellAt(400, 120, grid.whole), after = grid.cellAt(400, 120, view);
  assert.deepEqual(after, before);
  const far = grid.clamp({ x: 1e6, y: -1e6, scale: 1e6 });
  assert.ok(far.scale === grid.largestScale && far.x + grid.width / far.scale <= grid.width + 1e-6 && far.y === 0);
});

test("pixels cover every item once when items are smaller, and each item's pixels when larger", () => {
  for (const [count, from, size, limit] of [[100, 3.4, 20.3, 50], [7, 2, 40, 60], [1000, -30, 400, 200]]) {
    const axis = pixelEdges(count, from, size, limit);
    for (let item = 0; item < count; item++) {
      const covering = [];
      for (let pixel = 0; pixel < axis.stop - axis.start; pixel++) {
        if (axis.edges[2 * pixel] <= item && item < axis.edges[2 * pixel + 1]) covering.push(pixel);
      }
      assert.deepEqual(pixelsOf(axis, item), covering);
      if (count > size && from >= 0) assert.equal(covering.length, 1, `item ${item}`);
    }
  }
});
