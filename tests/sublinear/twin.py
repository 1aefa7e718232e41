"""The simulator again, in plain Python: what runs where each value has a hold, and what is live when."""

from itertools import pairwise

KEEP, RETAIN = -1, 2**23 - 1


def uses_of(request):
    uses = {v.number: [] for v in request.values}
    for t, node in enumerate(request.nodes):
        for v in dict.fromkeys(node.inputs):
            uses[v].append(t)
    return uses


def gaps(request):
    """Return for each value that may go where its places begin: see simulator.hpp; and whether it has a gap."""
    found, uses = {}, uses_of(request)
    for t, node in enumerate(request.nodes):
        if not node.is_pure or node.phase == "update":
            continue
        for v in node.outputs:
            if request.values[v].pinned == "output" or not request.values[v].nbytes or not uses[v]:
                continue
            points = [t, *uses[v]]
            gives = {n.number for n in request.nodes if any(a == v for a, _ in n.inplace)}
            gaps = sorted((a - b, a) for a, b in pairwise(points) if b - a > 1 or a in gives)
            starts, has_gap = [a for _, a in gaps], bool(gaps) and gaps[0][0] < -1
            starts.insert(int(has_gap), uses[v][-1])
            found[v] = starts[:7], has_gap
    return found


def runs(request, hold):
    """Return the nodes that run, in order."""
    nodes, uses, gap = request.nodes, uses_of(request), gaps(request)
    maker = {v: t for t, n in enumerate(nodes) for v in n.outputs}
    there = {v.number for v in request.values if v.number not in maker}
    order = []

    def compute(t, again):
        for v in nodes[t].inputs:
            if v not in there:
                compute(maker[v], again)
                again.append(maker[v])
        order.append(t)
        there.update(nodes[t].outputs)

    def stays(v, t):
        if hold[v] == KEEP or hold[v] & RETAIN == RETAIN:
            return True
        later = [u for u in uses[v] if u > t]
        return bool(later) and later[0] - t <= hold[v] & RETAIN

    for t in range(len(nodes)):
        again = []
        compute(t, again)
        for n in again:
            for v in nodes[n].outputs:
                (there.add if stays(v, t) else there.discard)(v)
        served = {v for n in again for v in nodes[n].inputs}
        for v, (starts, _) in gap.items():
            places = hold[v] >> 23 or 1
            goes = any(s == t and places >> i & 1 for i, s in enumerate(starts))
            if hold[v] != KEEP and (goes or places >> 7 and v in served):
                there.discard(v)
    return order


def peak(request, order):
    """Return the most bytes that are live at one run, its scratch among them, and all results."""
    nodes, values = request.nodes, request.values
    made = {v for n in nodes for v in n.outputs}
    size = {v.number: -(-v.nbytes // request.alignment) * request.alignment for v in values}
    newest, last = {}, {}
    for r, t in enumerate(order):
        for v in nodes[t].inputs:
            if v in made:
                last[newest[v]] = r
        for v in nodes[t].outputs:
            newest[v] = (v, r)
            last[v, r] = r
    for v in values:
        if v.pinned == "output":
            last[newest[v.number]] = len(order)
    newest, block, blocks = {}, {}, []  # blocks: [bytes, start, end]
    for r, t in enumerate(order):
        taken = set()
        for v in nodes[t].outputs:
            over = [a for a, b in nodes[t].inplace if b == v]
            if not made.issuperset(over):
                block[v, r] = None
                continue
            free = [a for a in over if last[newest[a]] == r and nodes[t].inputs.count(a) == 1]
            left = [block[newest[a]] for a in free if block[newest[a]] not in (None, *taken)]
            mine = left[0] if left else None
            if mine is None:
                mine = len(blocks)
                blocks.append([size[v], r, r])
            taken.add(mine)
            block[v, r] = mine
            blocks[mine][2] = last[v, r]
        for v in nodes[t].outputs:
            newest[v] = (v, r)
    results = sum(b for b, _, end in blocks if end == len(order))
    inner = [b for b in blocks if b[2] < len(order)]
    scratch = [-(-nodes[t].workspace_bytes // request.alignment) * request.alignment for t in order]
    live = [
        sum(b for b, start, end in inner if start <= r <= end) + scratch[r]
        for r in range(len(order))
    ]
    return results + max(live, default=0)
