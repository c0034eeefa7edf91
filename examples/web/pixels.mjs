// Preprocessing by the rule of docs/apps.md: bit-identical to the pixels that the device was
// trained on. It uses neither a page nor files, so it runs anywhere.

const BITS = 22; // weights are whole numbers of 2^-22, so that all sums are exact
const HALF = 1 << (BITS - 1);

// A decoded picture (`step` bytes a pixel, red, green and blue first) as uint8 [channels, height, width].
export function pixels({ data, width, height, step }, [channels, high, wide]) {
  const across = windows(width, Math.min(width, (height * wide) / high), wide);
  const down = windows(height, Math.min(height, (width * high) / wide), high);
  const planes = new Uint8Array(channels * high * wide);
  for (let channel = 0; channel < channels; channel++) {
    const plane = channels === 1 ? grey(data, step) : every(data, step, channel);
    planes.set(scaled(scaled(plane, height, across), wide, down), channel * high * wide);
  }
  return planes;
}

function every(data, step, channel) {
  const plane = new Uint8Array(data.length / step);
  for (let i = 0; i < plane.length; i++) plane[i] = data[i * step + channel];
  return plane;
}

function grey(data, step) {
  const plane = new Uint8Array(data.length / step);
  for (let i = 0, at = 0; i < plane.length; i++, at += step) {
    plane[i] = (19595 * data[at] + 38470 * data[at + 1] + 7471 * data[at + 2] + 32768) >> 16;
  }
  return plane;
}

// For each new pixel of a row: the first old pixel with a weight, and the weights from there on. The
// filter is a triangle that reaches zero at the distance of one new pixel, and at least one old one.
function windows(length, covered, size) {
  const left = Math.fround((length - covered) / 2);
  const right = Math.fround((length - covered) / 2 + covered);
  const step = Math.fround(right - left) / size;
  const reach = Math.max(step, 1);
  return Array.from({ length: size }, (_, number) => {
    const centre = left + (number + 0.5) * step;
    const first = Math.max(Math.trunc(centre - reach + 0.5), 0);
    const end = Math.min(Math.trunc(centre + reach + 0.5), length);
    const weights = Array.from({ length: end - first }, (_, i) =>
      Math.max(1 - Math.abs((first + i - centre + 0.5) / reach), 0),
    );
    const sum = weights.reduce((a, b) => a + b, 0);
    return { first, weights: weights.map((w) => Math.floor((w / sum) * 2 ** BITS + 0.5)) };
  });
}

// Scale the rows of a plane and transpose it: done twice, both directions are scaled.
function scaled(plane, rows, windows) {
  const columns = plane.length / rows;
  const turned = new Uint8Array(windows.length * rows);
  windows.forEach(({ first, weights }, column) => {
    for (let row = 0; row < rows; row++) {
      let sum = HALF;
      for (let i = 0; i < weights.length; i++) sum += weights[i] * plane[row * columns + first + i];
      turned[column * rows + row] = Math.min(sum >> BITS, 255);
    }
  });
  return turned;
}
