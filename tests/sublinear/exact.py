"""The fastest schedule of a small graph within a budget, of all there are: shortest paths over what is present."""

import heapq


def fastest(request, budget):
    """Return the least time, or None where nothing fits.

    A state is how many nodes ran for the first time, and the set of values that are present. From one, the next node
    may run, any node that may run again, or a value may go; the live bytes at a run are the simulator's, with an output
    over an input that goes with the run.
    """
    nodes, values = request.nodes, request.values
    made = {v: n for n in nodes for v in n.outputs}
    size = {v: -(-values[v].nbytes // request.alignment) * request.alignment for v in made}
    results = {v for v in made if values[v].pinned == "output"}
    room = budget - sum(size[v] for v in results)
    reads = [{v for v in n.inputs if v in made} for n in nodes]
    may_repeat = [n.is_pure and n.phase != "update" for n in nodes]
    sizes = lambda present: sum(size[v] for v in present if v not in results)  # noqa: E731
    queue, best, count = [(0.0, 0, 0, frozenset())], {(0, frozenset()): 0.0}, 0
    while queue:
        time, _, done, present = heapq.heappop(queue)
        if done == len(nodes):
            return time
        if time > best[done, present]:
            continue
        runs = [done] + [
            t for t in range(done) if may_repeat[t] and not present.issuperset(nodes[t].outputs)
        ]
        following = [(time, done, present - {v}) for v in present if v not in results]
        for t in runs:
            if not reads[t] <= present:
                continue
            after, taken = present.union(nodes[t].outputs), set()
            following.append((time + nodes[t].time_ns, done + (t == done), after))
            if sizes(after) > room:
                following.pop()
            for a, b in nodes[t].inplace:
                if (
                    a in reads[t]
                    and nodes[t].inputs.count(a) == 1
                    and not {a, b} & (taken | results)
                ):
                    taken |= {a, b}
            over = {a for a, _ in nodes[t].inplace if a in taken}
            if over and sizes(after - over) <= room:
                following.append((time + nodes[t].time_ns, done + (t == done), after - over))
        for state in following:
            if state[0] < best.get(state[1:], float("inf")):
                best[state[1:]] = state[0]
                count += 1
                heapq.heappush(queue, (state[0], count, *state[1:]))
    return None
