"""Checks and pictures of notebook 03: right answers pass, plausible wrong ones do not, nothing is told."""

import checks_03 as checks
import pictures_03 as pictures

import minigrad as mg
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


def bottom_up(children, root):
    order = [root]
    for node in order:
        order += children[node]
    return order[::-1]


def after_children(children, root):
    return [n for c in children[root] for n in after_children(children, c)] + [root]


def node(cell, x, below, forget=None, mix=None, out=None):
    h = sum((h for h, _ in below), mg.zeros(4, dtype=mg.float64))
    i, o, u = (cell.iou_x(x) + cell.iou_h(h)).chunk(3, -1)
    i, o, u = mix(i, o, u) if mix else (i.sigmoid(), o.sigmoid(), u.tanh())
    gate = forget or (lambda total, h: (cell.f_x(x) + cell.f_h(h)).sigmoid())
    c = i * u + sum((gate(h, each) * c for each, c in below), 0)
    return (out or (lambda o, c: o * c.tanh()))(o, c), c


def gated(make):
    return lambda cell, x, below: node(cell, x, below, forget=lambda h, each: make(cell, x, h, each))


def heights(children):
    root = next(iter(set(range(len(children))) - {c for below in children for c in below}))
    found = {}
    for k in bottom_up(children, root):
        found[k] = max((found[c] + 1 for c in children[k]), default=0)
    return [found[k] for k in range(len(children))]


def depths(children):
    root = next(iter(set(range(len(children))) - {c for below in children for c in below}))
    found = {root: 0}
    for k in bottom_up(children, root)[::-1]:
        found.update({c: found[k] + 1 for c in children[k]})
    return [found[k] for k in range(len(children))]


def mean(x, lengths):
    inside = (mg.arange(x.shape[1]) < lengths.reshape(-1, 1)).unsqueeze(-1)
    return mg.where(inside, x, 0.0).sum(1) / lengths.reshape(-1, 1)


def place(index, canvas, side):
    return divmod(index, canvas - side + 1)


RIGHT = {
    checks.check_bottom_up: [(bottom_up,)],
    checks.check_node: [(node,)],
    checks.check_heights: [(heights,)],
    checks.check_masked_mean: [(mean,)],
    checks.check_place: [(place,)],
}
WRONG = {
    checks.check_bottom_up: [
        (lambda children, root: bottom_up(children, root)[::-1],),
        (lambda children, root: list(range(len(children)))[::-1],),
        (lambda children, root: bottom_up(children, root)[1:],),
        (lambda children, root: [root, *after_children(children, root)[:-1]],),
    ],
    checks.check_node: [
        (gated(lambda cell, x, total, h: (cell.f_x(x) + cell.f_h(total)).sigmoid()),),
        (gated(lambda cell, x, total, h: cell.f_x(x) + cell.f_h(h)),),
        (gated(lambda cell, x, total, h: 1),),
        (gated(lambda cell, x, total, h: cell.f_h(h).sigmoid()),),
        (lambda cell, x, below: node(cell, x, below, mix=lambda i, o, u: (i.sigmoid(), o.sigmoid(), u.sigmoid())),),
        (lambda cell, x, below: node(cell, x, below, mix=lambda i, o, u: (o.sigmoid(), i.sigmoid(), u.tanh())),),
        (lambda cell, x, below: node(cell, x, below, out=lambda o, c: o * c),),
        (lambda cell, x, below: node(cell, x, below)[::-1],),
        (lambda cell, x, below: node(cell, x, below[:1]),),
        (lambda cell, x, below: node(cell, x, below)[0],),
    ],
    checks.check_heights: [
        (depths,),
        (lambda children: [len(below) for below in children],),
        (lambda children: [h + 1 for h in heights(children)],),
        (lambda children: heights(children)[:-1],),
        (lambda children: [min(h, 1) for h in heights(children)],),
    ],
    checks.check_masked_mean: [
        (lambda x, lengths: x.mean(1),),
        (lambda x, lengths: x.sum(1) / lengths.reshape(-1, 1),),
        (lambda x, lengths: mean(x, lengths) * lengths.reshape(-1, 1) / x.shape[1],),
        (lambda x, lengths: (x * (mg.arange(x.shape[1]) < lengths.reshape(-1, 1)).unsqueeze(-1)).sum(1)
         / lengths.reshape(-1, 1),),
        (lambda x, lengths: mean(x, lengths).detach() * 1 + (x * 0).sum(1),),
        (lambda x, lengths: mean(x, (lengths - 1).clamp(min=1)),),
    ],
    checks.check_place: [
        (lambda index, canvas, side: divmod(index, canvas),),
        (lambda index, canvas, side: divmod(index, side),),
        (lambda index, canvas, side: divmod(index, canvas - side),),
        (lambda index, canvas, side: place(index, canvas, side)[::-1],),
        (lambda index, canvas, side: index,),
    ],
}


def test_a_recursion_is_told_that_it_is_too_deep(said):
    assert "your code stopped with RecursionError" in said(checks.check_bottom_up, after_children)


def test_boxes_of_a_tree_do_not_overlap():
    labels = ["root", "a long name", "b", "c", "another long name", "d", "e", "a very long leaf"]
    children = [[1, 2, 3], [4, 5], [], [6, 7], [], [], [], []]
    drawn = pictures.tree(labels, children, levels=True)
    assert repr(drawn).splitlines() == [
        *("root", "  a long name", "    another long name", "    d", "  b", "  c", "    e", "    a very long leaf")
    ]
    boxes = [[float(v) for v in part.replace("rect x=", "").split('"')[1:6:2]] for part in drawn.svg.split("<")
             if part.startswith("rect")]
    for k, (x, y, wide) in enumerate(boxes):
        for left, top, width in boxes[:k]:
            assert top != y or left + width <= x or x + wide <= left


def test_graphs_stand_side_by_side_under_their_names():
    x = mg.ones(2, requires_grad=True)
    one, two = (mg.draw(y, engine="layered") for y in (x.tanh(), (x * 2).sum()))
    drawn = pictures.beside(one_op=one, two=two)
    assert repr(drawn).startswith("one op\n1 ") and "\n\ntwo\n1 " in repr(drawn)
    assert drawn.svg.count("<svg") == 3 and drawn.width > 200


def test_a_scene_says_what_was_found_where():
    drawn = pictures.scenes(mg.ones(2, 1, 10, 10), [(0, 1), (2, 2)], ["3", "5, said 6"])
    assert repr(drawn) == "3 at (0, 1); 5, said 6 at (2, 2)" and drawn.svg.count("<rect") == 4
