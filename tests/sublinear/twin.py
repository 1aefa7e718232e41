"""The simulator again, in plain Python: what runs where each value has a hold, and what is live when."""

from itertools import pairwise

KEEP, RETAIN = -1, 2**31 - 1


def uses_of(request):
    uses = {v.number: [] for v in request.values}
    for t, node in enumerate(request.nodes):
        for v in dict.fromkeys(node.inputs):
            uses[v].append(t)
    return uses


def gaps(request):
    """Return for each value that may go where its longest gap begins, and whether it has one."""
    found, uses = {}, uses_of(request)
    for t, node in enumerate(request.nodes):
        if not node.is_pure or node.phase == "update":
            continue
        for v in node.outputs:
            if request.values[v].pinned == "output" or not request.values[v].nbytes or not uses[v]:
                continue
            points = [t, *uses[v]]
            a, b = max(pairwise(points), key=lambda p: p[1] - p[0])
            found[v] = (a, True) if b - a > 1 else (uses[v][-1], False)
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
        if hold[v] in (KEEP, RETAIN):
            return True
        later = [u for u in uses[v] if u > t]
        return hold[v] > 0 and bool(later) and later[0] - t <= hold[v]

    for t in range(len(nodes)):
        again = []
        compute(t, again)
        for n in again:
            for v in nodes[n].outputs:
                (there.add if stays(v, t) else there.discard)(v)
        for v, (start, _) in gap.items():
            if start == t and hold[v] != KEEP:
                there.discard(v)
    return order


def peak(request, order):
    """Return the most bytes that are live at one run, and all results."""
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
        taken, pairs = set(), {b: a for a, b in nodes[t].inplace}
        for v in nodes[t].outputs:
            a, mine = pairs.get(v), None
            if a is not None and a not in made:
                block[v, r] = None
                continue
            if a is not None and last[newest[a]] == r and nodes[t].inputs.count(a) == 1:
                mine = block[newest[a]]
            if mine is None or mine in taken:
                mine = len(blocks)
                blocks.append([size[v], r, r])
            taken.add(mine)
            block[v, r] = mine
            blocks[mine][2] = last[v, r]
        for v in nodes[t].outputs:
            newest[v] = (v, r)
    results = sum(b for b, _, end in blocks if end == len(order))
    inner = [b for b in blocks if b[2] < len(order)]
    live = [sum(b for b, start, end in inner if start <= r <= end) for r in range(len(order))]
    return results + max(live, default=0)
