"""The laws of every self-check, over the tables RIGHT and WRONG of the module that imports them.

RIGHT and WRONG give for each check a list of answers; a tuple is several answers to one check.
"""


def arguments(answer) -> tuple:
    return answer if isinstance(answer, tuple) else (answer,)


def test_every_check_has_right_and_wrong_answers(request):
    module = request.module
    every = {v for name, v in vars(module.checks).items() if name.startswith("check_")}
    assert every == set(module.RIGHT) == set(module.WRONG)


def test_a_right_answer_passes(right, said):
    check, answer = right
    text = said(check, *arguments(answer))
    assert text.startswith("right: "), text


def test_a_wrong_answer_is_told_what_is_off_in_one_line(wrong, said):
    check, answer = wrong
    text = said(check, *arguments(answer))
    assert text.startswith("not yet: ") and text.count("\n") == 1, text


def test_an_open_answer_stops_nothing(right, said, request):
    check, answer = right
    answers = arguments(answer)
    assert said(check, *(None for _ in answers)).startswith("not answered yet")
    if callable(answers[0]) and check not in getattr(request.module, "CHANGES_IN_PLACE", ()):
        unfinished = getattr(request.module, "unfinished", lambda *inputs: None)
        assert said(check, unfinished).startswith("not answered yet")
