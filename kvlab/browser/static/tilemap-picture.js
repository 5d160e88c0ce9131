/* How a tile, its outlines and its axes are painted; put before tilemap.js. */

const LEFT = 64, BOTTOM = 44, TOP = 6, RIGHT = 6;

function decode(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return new Int16Array(bytes.buffer);
}

class TilePicture {
  /* The tile as a small picture, once for each tile. */
  paint() {
    const { rows, columns, scale } = this.data, image = new ImageData(columns, rows);
    const stops = scale.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    /* One 32-bit word a cell, looked up: faster than four bytes each. */
    const bytes = new Uint8ClampedArray(257 * 4), words = new Uint32Array(bytes.buffer);
    for (let level = 0; level <= 256; level++) {
      const at = (level / 256) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at));
      for (let c = 0; c < 3; c++) bytes[4 * level + c] = stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low);
      bytes[4 * level + 3] = 255;
    }
    const pixels = new Uint32Array(image.data.buffer), { values } = this, count = values.length;
    for (let cell = 0; cell < count; cell++) pixels[cell] = words[(values[cell] + 32895) >> 8];
    this.picture = new OffscreenCanvas(columns, rows);
    this.picture.getContext("2d").putImageData(image, 0, 0);
  }

  size() { return Math.max(240, Math.min(this.root.clientWidth - LEFT - RIGHT, 760)); }

  draw() {
    if (!this.data || !this.root.clientWidth) return;
    const side = this.size(), ratio = window.devicePixelRatio || 1, width = side + LEFT + RIGHT, height = side + TOP + BOTTOM;
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP, side, side);
    context.clip();
    context.translate(LEFT, TOP);
    this.drawTile(context, side);
    this.drawOutlines(context, side);
    this.drawCross(context, side);
    context.restore();
    this.drawAxes(context, side);
  }

  drawTile(context, side) {
    const [r0, r1, c0, c1] = this.data.window, [top, bottom, left, right] = this.view;
    const across = side / (right - left), down = side / (bottom - top);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.picture, (c0 - left) * across, (r0 - top) * down, (c1 - c0) * across, (r1 - r0) * down);
  }

  drawOutlines(context, side) {
    const [top, bottom, left, right] = this.view, across = side / (right - left), down = side / (bottom - top);
    context.strokeStyle = this.data.outlineColour;
    context.lineWidth = 1.5;
    const box = (a, b, c, d) => context.strokeRect((a - left) * across, (c - top) * down, (b - a) * across, (d - c) * down);
    for (const [a, b, c, d] of this.data.outlines) {
      box(a, b, c, d);
      if (a !== c || b !== d) box(c, d, a, b);
    }
  }

  drawCross(context, side) {
    if (!this.pointer || this.dragging) return;
    context.strokeStyle = this.data.ink;
    context.globalAlpha = 0.45;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(0, this.pointer.y); context.lineTo(side, this.pointer.y);
    context.moveTo(this.pointer.x, 0); context.lineTo(this.pointer.x, side);
    context.stroke();
    context.globalAlpha = 1;
  }

  drawAxes(context, side) {
    const [top, bottom, left, right] = this.view, style = getComputedStyle(this.root);
    context.fillStyle = this.data.quiet;
    context.strokeStyle = this.data.quiet;
    context.font = `12px ${style.fontFamily}`;
    context.strokeRect(LEFT, TOP, side, side);
    const ticks = (from, to) => {
      const rough = (to - from) / 6, power = 10 ** Math.floor(Math.log10(rough)), step = Math.max(1, [1, 2, 5, 10].find((n) => n * power >= rough) * power);
      const found = [];
      for (let at = Math.ceil(from / step) * step; at < to; at += step) found.push(at);
      return found;
    };
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const at of ticks(top, bottom)) context.fillText(at, LEFT - 8, TOP + ((at + 0.5 - top) / (bottom - top)) * side);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const at of ticks(left, right)) context.fillText(at, LEFT + ((at + 0.5 - left) / (right - left)) * side, TOP + side + 7);
    context.fillStyle = this.data.ink;
    context.font = `13px ${style.fontFamily}`;
    context.fillText("token (position)", LEFT + side / 2, TOP + side + 26);
    context.save();
    context.translate(13, TOP + side / 2);
    context.rotate(-Math.PI / 2);
    context.fillText("token (position)", 0, -7);
    context.restore();
  }
}
