"""MagPy's worked example: the program of Figure 9 and its Figures 7, 10 and 11, step by step.

def f(x, y, z):
    x[0] += y
    x.append(x[0] * y)
    a = tuple(x)

f([tensor], 2.0, 3.0)
"""

import operator

import torch

from magpy_like.annotation import RelationKind
from magpy_like.monitor.run import MonitorRun
from magpy_like.refgraph import EXTERNAL, RefGraph, Relation, get_guard_nodes, get_mock_nodes
from magpy_like.refgraph.rendering import to_dot, to_text
from tests.programs import Twins


def local(name):
    return Relation(RelationKind.LOCAL, name)


def item(index):
    return Relation(RelationKind.ITEM, index)


def edges(node, version):
    return {str(relation): to for relation, to in node.versions[version].refs.items()}


class Figure7:
    """The updates of the figure, applied to a RefGraph one after the other."""

    def __init__(self):
        self.graph = RefGraph()
        self.tensor, self.product = torch.rand(3, 3), torch.rand(3, 3)
        self.x = [self.tensor]

    def step_1(self):
        """x[0] and y are read."""
        graph = self.graph
        x = graph.read(graph.external, local("x"), self.x)
        graph.read(x, item(0), self.tensor)
        graph.read(graph.external, local("y"), 2.0, plain=True)

    def step_2(self):
        """x[0] += y changes the tensor in place and stores the same tensor again."""
        graph = self.graph
        graph.in_place(graph.get_node_by_var(self.tensor))
        graph.write(graph.get_node_by_var(self.x), item(0), self.tensor)

    def step_3(self):
        """x.append(x[0] * y)"""
        self.graph.add(self.product, existed=False)
        self.x.append(self.product)
        self.graph.write(self.graph.get_node_by_var(self.x), item(1), self.product)

    def step_4(self):
        """a = tuple(x)"""
        graph = self.graph
        self.a = tuple(self.x)
        a = graph.add(self.a, existed=False)
        for i, element in enumerate(self.a):
            graph.read(a, item(i), element)
        graph.write(graph.external, local("a"), self.a)


def after(steps):
    figure = Figure7()
    for number in range(1, steps + 1):
        getattr(figure, f"step_{number}")()
    return figure


def test_step_1_has_nodes_for_variables_that_were_read():
    graph = after(1).graph
    assert [node.type.__name__ for node in graph][1:] == ["list", "Tensor", "float"]
    assert edges(graph.external, 0) == {"local 'x'": 1, "local 'y'": 3}
    assert edges(graph.get_node_by_id(1), 0) == {"item 0": 2}
    assert graph.get_node_by_id(3).first.value == 2.0
    assert all(len(node.versions) == 1 for node in graph)


def test_step_2_adds_a_version_to_the_tensor_but_not_to_the_list():
    graph = after(2).graph
    assert [len(node.versions) for node in graph] == [1, 1, 2, 1]


def test_step_3_adds_a_version_with_the_new_element_to_the_list():
    graph = after(3).graph
    x, product = graph.get_node_by_id(1), graph.get_node_by_id(4)
    assert len(x.versions) == 2
    assert edges(x, 0) == {"item 0": 2}
    assert edges(x, 1) == {"item 0": 2, "item 1": 4}
    assert product.existed is False


def test_step_4_creates_a_tuple_independent_of_the_list():
    graph = after(4).graph
    a = graph.get_node_by_id(5)
    assert edges(a, 0) == {"item 0": 2, "item 1": 4}
    assert edges(graph.external, 0) == {"local 'x'": 1, "local 'y'": 3}
    assert edges(graph.external, -1) == {"local 'x'": 1, "local 'y'": 3, "local 'a'": 5}
    assert len(graph.get_node_by_id(1).versions) == 2, "creating the tuple does not change the list"


def test_figure_11a_guards_x_its_element_and_y():
    nodes = get_guard_nodes(after(4).graph)
    assert [node.node_id for node in nodes] == [EXTERNAL, 1, 3, 2]


def test_figure_11b_mocks_new_and_changed_variables():
    nodes = get_mock_nodes(after(4).graph)
    new, changed = {4, 5}, {EXTERNAL, 1, 2}
    assert {node.node_id for node in nodes} == new | changed
    assert [node.node_id for node in nodes if not node.existed] == [5, 4]


def test_relation_read_late_belongs_to_every_version():
    figure = after(3)
    graph = figure.graph
    x = graph.get_node_by_id(1)
    graph.read(x, Relation(RelationKind.LENGTH), 1, plain=True)
    assert all("length" in edges(x, version) for version in (0, -1))


# --- the same program under the monitor ---------------------------------------------------------


def line_2(x, y, z):
    x[0] += y


def lines_2_and_3(x, y, z):
    x[0] += y
    x.append(x[0] * y)


def lines_2_to_4(x, y, z):
    x[0] += y
    x.append(x[0] * y)
    a = tuple(x)
    return a


def monitored(program):
    run = MonitorRun(program, ([torch.ones(3, 3)], 2.0, 3.0), {})
    run.run()
    assert run.context.recording.split is None
    return run.context.recording


def test_monitor_records_x_its_element_and_y_but_not_z():
    for program in (line_2, lines_2_and_3, lines_2_to_4):
        graph = monitored(program).refs
        assert edges(graph.external, 0).keys() >= {"local 0", "local 1"}
        assert "local 2" not in edges(graph.external, 0)
        x = graph.get_node_by_id(edges(graph.external, 0)["local 0"])
        y = graph.get_node_by_id(edges(graph.external, 0)["local 1"])
        assert x.type is list and y.first.value == 2.0
        assert graph.get_node_by_id(edges(x, 0)["item 0"]).type is torch.Tensor
        guarded = {
            n.node_id for n in get_guard_nodes(graph) if n.type in (list, torch.Tensor, float)
        }
        assert guarded == {x.node_id, y.node_id, edges(x, 0)["item 0"]}


def test_monitor_adds_a_version_to_the_list_on_append():
    versions = []
    for program in (line_2, lines_2_and_3, lines_2_to_4):
        graph = monitored(program).refs
        x = graph.get_node_by_id(edges(graph.external, 0)["local 0"])
        versions.append(len(x.versions))
        assert (x in get_mock_nodes(graph)) == x.changed
    assert versions == [1, 2, 2]


def test_figure_10_operator_graph_adds_and_multiplies():
    recording = monitored(lines_2_to_4)
    nodes = list(recording.operators.nodes.graph.nodes)
    add, product = [node for node in nodes if node.op.startswith("call")]
    (load,) = [node for node in nodes if node.op == "placeholder"]
    assert add.target in (operator.iadd, "__iadd__") and add.args == (load, 2.0)
    assert product.target in (operator.mul, "__mul__")
    # In place: the sum is the input's new version, which the product reads.
    assert product.args[0] in (add, load) and product.args[1] == 2.0
    ((_, shadow_id),) = recording.operators.nodes.inputs
    x = recording.refs.get_node_by_id(edges(recording.refs.external, 0)["local 0"])
    assert edges(x, 0)["item 0"] == shadow_id, "the input is loaded from x[0]"


def test_figures_11c_and_11d_guard_and_mock_behave_as_the_program():
    twins = Twins(lambda: lines_2_to_4)
    arguments = lambda *rest, n=1: lambda: ([torch.ones(3, 3)] * n, *rest)
    twins.call(arguments(2.0, 3.0), hit=False)
    twins.call(arguments(2.0, 3.0), hit=True)
    twins.call(arguments(2.0, 99.0), hit=True)  # z was never read
    twins.call(arguments(4.0, 3.0), hit=False)
    twins.call(arguments(2.0, 3.0, n=2), hit=False)
    twins.call(lambda: ((torch.ones(3, 3),), 2.0, 3.0), hit=False)


# --- renderings ----------------------------------------------------------------------------------


def test_text_shows_nodes_versions_and_edges():
    assert to_text(after(4).graph).splitlines() == [
        "SN #0 external (guard, mock)",
        "    v0: local 'x' → SN #1, local 'y' → SN #3",
        "    v1: local 'x' → SN #1, local 'y' → SN #3, local 'a' → SN #5",
        "SN #1 list (guard, mock)",
        "    v0: item 0 → SN #2",
        "    v1: item 0 → SN #2, item 1 → SN #4",
        "SN #2 Tensor (guard, mock)",
        "    v0: no references",
        "    v1: no references",
        "SN #3 float 2.0 (guard)",
        "    v0: no references",
        "SN #4 Tensor, new (mock)",
        "    v0: no references",
        "SN #5 tuple, new (mock)",
        "    v0: item 0 → SN #2, item 1 → SN #4",
    ]


def test_text_shows_absent_keys():
    graph = RefGraph()
    table = graph.read(graph.external, local("d"), {})
    graph.read_absent(table, Relation(RelationKind.KEY, "k"))
    assert "    v0: key 'k' → nothing" in to_text(graph)
    assert "absent [shape=plaintext];" in to_dot(graph)


def test_dot_has_a_record_per_node_and_an_edge_per_reference():
    dot = to_dot(after(4).graph)
    assert dot.startswith("digraph RefGraph {") and dot.endswith("}")
    assert dot.count("{") == dot.count("}")
    assert dot.count('[label="SN #') == 6
    assert '  n1:v1 -> n4 [label="item 1"];' in dot
    assert "  n0:v1 -> n5 [label=\"local 'a'\"];" in dot


def test_dot_escapes_special_characters():
    graph = RefGraph()
    graph.read(graph.external, local('a"|b'), "{<x>}", plain=True)
    dot = to_dot(graph)
    assert r"str '\{\<x\>\}'" in dot
    assert r"local 'a\"\|b'" in dot
