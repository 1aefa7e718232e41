// A layered drawing of a graph (Sugiyama, Tagawa, Toda 1981): ranks, order inside each rank, then positions.
// In: boxes with a width, and for each the boxes that it reads. Out: x and y of each box, and the points of each edge.

const RANK_GAP = 30, BOX_GAP = 18, LANE_WIDTH = 10, LONG_EDGE = 6, SWEEPS = 10;

function layoutGraph(boxes) {
  // boxes: [{id, width, height, inputs: [id]}] in an order in which each comes after what it reads.
  const cells = new Map(boxes.map((b) => [b.id, {box: b, width: b.width, rank: 0, above: [], below: [], x: 0, at: 0}]));
  rankCells(boxes, cells);
  const ranks = [];
  const put = (cell) => (ranks[cell.rank] ??= []).push(cell);
  for (const b of boxes) put(cells.get(b.id));
  const edges = [];
  for (const b of boxes) {
    const to = cells.get(b.id);
    for (const source of new Set(b.inputs)) {
      const from = cells.get(source);
      if (!from) continue;
      const chain = [from];
      const span = to.rank - from.rank;
      if (span <= LONG_EDGE) { // a lane of empty cells, one in each rank between
        for (let r = from.rank + 1; r < to.rank; r++) {
          const lane = {box: null, width: LANE_WIDTH, rank: r, above: [], below: [], x: 0, at: 0};
          put(lane);
          chain.push(lane);
        }
        chain.push(to);
        for (let i = 1; i < chain.length; i++) {
          chain[i - 1].below.push(chain[i]);
          chain[i].above.push(chain[i - 1]);
        }
      } else chain.push(to); // drawn as one long curve beside the rest
      edges.push({from: source, to: b.id, chain, long: span > LONG_EDGE});
    }
  }
  orderRanks(ranks);
  const positions = placeCells(ranks);
  return {cells, edges: edges.map((e) => ({...e, path: edgePath(e, positions)})), ...positions};
}

function rankCells(boxes, cells) {
  const used = new Map();
  for (const b of boxes) {
    const cell = cells.get(b.id);
    for (const i of b.inputs) {
      const from = cells.get(i);
      if (!from) continue;
      cell.rank = Math.max(cell.rank, from.rank + 1);
      used.set(i, [...(used.get(i) ?? []), cell]);
    }
  }
  for (const b of boxes) { // what reads nothing goes just above its first use
    const cell = cells.get(b.id), users = used.get(b.id);
    if (users && !b.inputs.some((i) => cells.has(i))) cell.rank = Math.max(0, Math.min(...users.map((u) => u.rank)) - 1);
  }
}

function orderRanks(ranks) {
  const number = () => ranks.forEach((rank) => rank.forEach((cell, i) => { cell.at = i; }));
  const sweep = (order, side) => {
    for (const r of order) {
      for (const cell of ranks[r]) {
        const near = cell[side];
        cell.wish = near.length ? near.reduce((sum, c) => sum + c.at, 0) / near.length : cell.at;
      }
      ranks[r].sort((a, b) => a.wish - b.wish || a.at - b.at);
      ranks[r].forEach((cell, i) => { cell.at = i; });
    }
  };
  const down = ranks.map((_, i) => i), up = [...down].reverse();
  number();
  let best = null, fewest = Infinity;
  for (let k = 0; k < SWEEPS; k++) {
    sweep(k % 2 ? up : down, k % 2 ? "below" : "above");
    const crossings = countCrossings(ranks);
    if (crossings < fewest) {
      fewest = crossings;
      best = ranks.map((rank) => [...rank]);
    }
  }
  best?.forEach((rank, r) => { ranks[r] = rank; });
  number();
}

function countCrossings(ranks) {
  let count = 0;
  for (const rank of ranks) {
    const ends = [];
    for (const cell of rank) for (const c of [...cell.below].sort((a, b) => a.at - b.at)) ends.push(c.at);
    if (ends.length > 400) continue; // counting these would take longer than it helps
    for (let i = 0; i < ends.length; i++) for (let j = i + 1; j < ends.length; j++) if (ends[i] > ends[j]) count++;
  }
  return count;
}

function placeCells(ranks) {
  let y = 0;
  for (const rank of ranks) {
    let x = 0, height = 0;
    for (const cell of rank) {
      cell.x = x + cell.width / 2;
      x += cell.width + BOX_GAP;
      height = Math.max(height, cell.box?.height ?? 0);
    }
    for (const cell of rank) cell.x -= x / 2;
    for (const cell of rank) { cell.y = y + height / 2; cell.top = y; cell.bottom = y + height; }
    y += height + RANK_GAP;
  }
  for (let k = 0; k < 16; k++) {
    const order = ranks.map((_, i) => i);
    if (k % 2) order.reverse();
    for (const r of order) settle(ranks[r], k % 2 ? "below" : "above");
  }
  for (const rank of ranks) settle(rank, "both");
  let left = Infinity, right = -Infinity;
  for (const rank of ranks) for (const c of rank) {
    left = Math.min(left, c.x - c.width / 2);
    right = Math.max(right, c.x + c.width / 2);
  }
  for (const rank of ranks) for (const c of rank) c.x -= left;
  return {width: Math.max(0, right - left), height: Math.max(0, y - RANK_GAP)};
}

// Moves the cells of a rank to where their neighbours pull them, in order and without overlap: the least squares
// solution, by pooling adjacent violators.
function settle(rank, side) {
  const blocks = [];
  let shift = 0;
  rank.forEach((cell, i) => {
    if (i) shift += (rank[i - 1].width + cell.width) / 2 + (cell.box && rank[i - 1].box ? BOX_GAP : BOX_GAP / 2);
    const all = side === "both" ? [...cell.above, ...cell.below] : cell[side];
    const inner = all.filter((c) => c.above.length); // inputs stand beside the main line and do not pull at it
    const near = inner.length ? inner : all;
    const wish = near.length ? near.reduce((sum, c) => sum + c.x, 0) / near.length : cell.x;
    const weight = near.length ? (cell.box ? 1 : 4) : 0.1;
    let block = {sum: (wish - shift) * weight, weight, cells: [[cell, shift]]};
    while (blocks.length && blocks.at(-1).sum / blocks.at(-1).weight > block.sum / block.weight) {
      const before = blocks.pop();
      block = {sum: before.sum + block.sum, weight: before.weight + block.weight, cells: [...before.cells, ...block.cells]};
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const [cell, offset] of block.cells) cell.x = block.sum / block.weight + offset;
}

function edgePath(edge, size) {
  const {chain, long} = edge;
  const first = chain[0], last = chain.at(-1);
  let x = first.x, y = first.y + first.box.height / 2;
  const endY = last.y - last.box.height / 2;
  let d = `M${x.toFixed(1)} ${y.toFixed(1)}`;
  const curve = (nx, ny) => {
    const bend = long ? Math.min(90, (ny - y) / 3) : (ny - y) / 2;
    d += `C${x.toFixed(1)} ${(y + bend).toFixed(1)} ${nx.toFixed(1)} ${(ny - bend).toFixed(1)} ${nx.toFixed(1)} ${ny.toFixed(1)}`;
    [x, y] = [nx, ny];
  };
  for (const lane of chain.slice(1, -1)) {
    curve(lane.x, lane.top);
    if (lane.bottom > lane.top) { d += `V${lane.bottom.toFixed(1)}`; y = lane.bottom; }
  }
  curve(last.x, endY);
  return d;
}
