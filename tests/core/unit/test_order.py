"""The pass ``order``: what waits for its reader, and what must not."""

import mge
from mge.passes.order import order
from mge.passes.verify import verify


def ordered(text):
    """Return the names of the ops in their new order."""
    graph = mge.parse_graph(text)
    made = order(graph)
    verify(made, "order", graph)
    return [n.sig.op.name for n in made.nodes]


def test_what_is_made_of_a_parameter_waits_for_its_reader():
    names = ordered("""graph(%0: f32[4, 4], %1: f32[4, 4] slow) {
      %2: f32[4, 4] = neg(%1)
      %3: f32[4, 4] = exp(%0)
      %4: f32[4, 4] = sin(%3)
      %5: f32[4, 4] = mul(%4, %2)
      return %5
    }""")
    assert names == ["exp", "sin", "neg", "mul"]


def test_what_frees_more_than_it_makes_does_not_wait():
    names = ordered("""graph(%0: f32[4, 4]) {
      %1: f32[4, 4] = exp(%0)
      %2: f32[4] = sum(%1) {axis=0, keepdims=False}
      %3: f32[4, 4] = sin(%0)
      %4: f32[4, 4] = cos(%3)
      %5: f32[4, 4] = add(%4, %2)
      return %5
    }""")
    assert names == ["exp", "sum", "sin", "cos", "add"]


def test_what_reads_a_value_that_lives_on_waits_with_its_views():
    names = ordered("""graph(%0: f32[4, 4]) {
      %1: f32[4, 4] = exp(%0)
      %2: f32[16] = reshape(%1) {shape=(16,)}
      %3: f32[16] = neg(%2)
      %4: f32[4, 4] = sin(%0)
      %5: f32[16] = reshape(%4) {shape=(16,)}
      %6: f32[16] = add(%5, %3)
      %7: f32[4, 4] = cos(%1)
      return %6, %7
    }""")
    assert names == ["exp", "reshape", "neg", "sin", "reshape", "add", "cos"]


def test_parts_of_several_results_stay_with_their_readers():
    names = ordered("""graph(%0: f32[2, 3]) {
      %1: (f32[2, 3], f32[3], f32[3]) = batch_norm_train(%0) {eps=0.1}
      %2: f32[3] = get(%1) {index=1}
      %3: f32[2, 3] = get(%1) {index=0}
      %4: f32[2, 3] = exp(%3)
      %5: f32[2, 3] = add(%4, %2)
      return %5
    }""")
    assert names == ["batch_norm_train", "get", "exp", "get", "add"]


def test_results_stay():
    names = ordered("""graph(%0: f32[4], %1: f32[4]) {
      %2: f32[4] = neg(%0)
      %3: f32[4] = exp(%1)
      %4: f32[4] = add(%3, %2)
      return %2, %4
    }""")
    assert names == ["neg", "exp", "add"]
