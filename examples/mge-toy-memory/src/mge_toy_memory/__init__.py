"""A memory strategy for mge: forget what is cheap to compute again, until the plan fits its budget.

In: a ``MemoryRequest``: steps, values, a budget in bytes. Out: the steps in their order, some of them twice.
"""

from mge.plugin import Free, MemoryReport, MemorySchedule, MemoryStrategy, Run


class Toy(MemoryStrategy):
    """``mge.memory("toy", budget="50%")``; without a budget it changes nothing."""

    name = "toy"

    def plan(self, request):
        """Return the steps under which the plan fits, or those with the lowest peak that was found."""
        if request.budget_bytes is None:
            return None
        forgotten = set()
        steps = self._steps(request, forgotten)
        peak = request.measure(steps)
        for value in self._by_gain(request):
            if peak <= request.budget_bytes:
                break
            tried = self._steps(request, forgotten | {value})
            if (lower := request.measure(tried)) <= peak:
                forgotten.add(value)
                steps, peak = tried, lower
        spent = sum(request.nodes[s.node].time_ns for s in steps if isinstance(s, Run))
        report = MemoryReport(spent, peak, None, "toy forgets no more than this")
        return MemorySchedule(steps, peak, report)

    def _by_gain(self, request):
        """Return what may be forgotten, most bytes for a nanosecond first."""
        again = [n for n in request.nodes if n.phase == "forward" and n.is_pure]
        time_ns = {v: n.time_ns for n in again for v in n.outputs if not request.values[v].pinned}
        return sorted(time_ns, key=lambda v: time_ns[v] / max(request.values[v].nbytes, 1))

    def _steps(self, request, forgotten):
        """Return the order of the request: what is forgotten goes after the forward phase, and comes back when read."""
        maker = {v: n for n in request.nodes for v in n.outputs}
        gone, steps, forward = set(), [], True

        def bring(value):
            if value in gone:
                for v in maker[value].inputs:
                    bring(v)
                steps.append(Run(maker[value].number))
                gone.difference_update(maker[value].outputs)

        for node in request.nodes:
            if forward and node.phase != "forward":
                forward, gone = False, {v for v in forgotten if Run(maker[v].number) in steps}
                steps += [Free(v) for v in sorted(gone)]
            for v in node.inputs:
                bring(v)
            steps.append(Run(node.number))
        return steps
