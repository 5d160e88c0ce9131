/* The canvases: the slot grid and the mosaic of token by step. */

class Pictures extends Head {
  canvas(name, height) {
    const node = this.part(name), ratio = window.devicePixelRatio || 1, width = node.clientWidth;
    node.style.height = `${height}px`;
    node.width = Math.round(width * ratio);
    node.height = Math.round(height * ratio);
    const context = node.getContext("2d");
    context.scale(ratio, ratio);
    return { node, context, width, height };
  }

  /* The slots are painted once for a step; what is lit is drawn over a copy, so that hovering stays quick. */
  drawGrid() {
    if (!this.slots || !this.colours) return;
    const width = this.part("grid").clientWidth;
    if (!width) return;
    const key = `${this.step}/${width}/${window.devicePixelRatio}/${this.colours}/${this.data.paper}`;
    if (key === this.gridKey) this.drawLit();
    else { this.paintGrid(width); this.gridKey = key; this.drawLit(); }
  }

  paintGrid(width) {
    const room = 400;
    let cell = 22;
    while (cell > 3 && Math.ceil(this.slots.length / Math.floor(width / cell)) * cell > room) cell--;
    const across = Math.max(1, Math.floor(width / cell)), rows = Math.ceil(this.slots.length / across);
    const { node, height } = this.canvas("grid", Math.max(cell, rows * cell));
    this.cell = { size: cell, across, side: cell - (cell > 6 ? 2 : cell > 4 ? 1 : 0), width, height };
    this.gridPicture = new OffscreenCanvas(node.width, node.height);
    const context = this.gridPicture.getContext("2d");
    context.putImageData(this.cellsImage(node.width, node.height), 0, 0);
    context.scale(node.width / width, node.height / height);
    if (cell >= 14) this.writeVotes(context);
  }

  /* Pixel by pixel: a hundred thousand calls of `fillRect` take a tenth of a second. */
  cellsImage(width, height) {
    const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer), words = this.colourWords();
    const { size, side, across } = this.cell, wide = width / this.cell.width, high = height / this.cell.height;
    for (let first = 0; first < this.slots.length; first += across) {
      const y = (first / across) * size, top = Math.round(y * high) * width, bottom = Math.round((y + side) * high) * width;
      this.paintRow(pixels, words, first, top, wide);
      for (let row = top + width; row < bottom; row += width) pixels.copyWithin(row, top, top + width);
    }
    return image;
  }

  /* The top line of a row of cells, from the slot `first` on; the lines below it are copies. */
  paintRow(pixels, words, first, top, wide) {
    const { size, side, across } = this.cell, stop = Math.min(across, this.slots.length - first);
    for (let column = 0; column < stop; column++) {
      const x = column * size, right = top + Math.round((x + side) * wide);
      for (let at = top + Math.round(x * wide); at < right; at++) pixels[at] = words[this.states[this.slots[first + column]]];
    }
  }

  /* The colour of each state as the four bytes of a pixel. */
  colourWords() {
    return this.colours.map((hex) => new Uint32Array(Uint8Array.of(...[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)), 255).buffer)[0]);
  }

  corner(index) { return [(index % this.cell.across) * this.cell.size, Math.floor(index / this.cell.across) * this.cell.size]; }

  writeVotes(context) {
    const votes = this.votes(), { size, side } = this.cell;
    context.fillStyle = this.data.paper;
    context.font = `600 ${Math.min(10, size - 8)}px ${getComputedStyle(this.root).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    this.slots.forEach((slot, index) => {
      const [x, y] = this.corner(index);
      if (votes[slot] > 1) context.fillText(votes[slot] > 99 ? "99+" : votes[slot], x + side / 2, y + side / 2 + 0.5);
    });
  }

  drawLit() {
    const context = this.part("grid").getContext("2d"), { width, height, side } = this.cell;
    context.clearRect(0, 0, width, height);
    context.drawImage(this.gridPicture, 0, 0, width, height);
    const index = this.litSlot === null || this.litSlot === undefined ? -1 : this.slots.indexOf(this.litSlot);
    if (index < 0) return;
    const [x, y] = this.corner(index);
    context.strokeStyle = this.data.ink;
    context.lineWidth = 2;
    context.strokeRect(x + 1, y + 1, side - 2, side - 2);
  }

  drawMosaic() {
    const { data } = this;
    if (!this.part("mosaic").clientWidth) return;
    const { context, width, height } = this.canvas("mosaic", this.steps.length > 1 ? 150 : 24);
    const { rows, columns } = data.mosaic;
    const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
    const words = this.colourWords();
    data.codes.forEach((code, cell) => { pixels[cell] = words[code]; });
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
    this.movePlayhead();
  }

  movePlayhead() {
    const share = (this.index() + 0.5) / this.steps.length;
    this.part("playhead").style.left = `${100 * share}%`;
  }

  slotAt(event) {
    if (!this.cell) return null;
    const box = this.part("grid").getBoundingClientRect(), column = Math.floor((event.clientX - box.left) / this.cell.size);
    if (column >= this.cell.across) return null;
    return this.slots[Math.floor((event.clientY - box.top) / this.cell.size) * this.cell.across + column] ?? null;
  }

  mosaicCell(event) {
    const box = this.part("mosaic").getBoundingClientRect(), limit = (value, top) => Math.max(0, Math.min(top - 1, Math.floor(value)));
    return {
      column: limit(((event.clientX - box.left) / box.width) * this.steps.length, this.steps.length),
      position: limit(((event.clientY - box.top) / box.height) * this.tokens, this.tokens),
    };
  }
}
