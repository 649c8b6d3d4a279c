"""Which column of scores is of which class, by their names."""

import itertools
import string

import pytest

from datarax.evaluation.name_matching import in_order_of, look_alikes, named_by

SAME = [
    "{}",
    "p_{}",
    "{}_score",
    "model_{}_score",
    "logit.{}",
    "Prob {}",
    "prob({})",
    "p{}",  # no word of its own
]


@pytest.mark.parametrize("column", SAME)
@pytest.mark.parametrize("label", ["{}", "LABEL_{}", "{} risk", "class-{}"])
def test_names_match_but_for_case_signs_and_affixes(column, label, rng):
    classes = ["Low", "very low", "no-risk", "HIGH", "0"]
    for _ in range(4):
        order = rng.permutation(len(classes))
        columns = [column.format(classes[i].lower().replace("-", "_")) for i in order]
        names = [label.format(x) for x in classes]
        assert in_order_of(columns, names) == tuple(names[i] for i in order)


def test_names_that_do_not_match_have_no_order():
    for columns, names in (
        (["logit_0", "logit_1"], ["entailment", "neutral"]),
        (["p_1", "p_2"], ["y_2", "y_3"]),
        (["p_cat", "p_cats"], ["dog", "dogs"]),
        (["scores"], ["a", "b"]),
        (["p_a", "p_b"], ["A", "a"]),  # which of them is p_a?
    ):
        assert in_order_of(columns, names) is None


def test_a_class_that_does_not_occur_is_called_by_its_column():
    assert in_order_of(["p_Cat", "p_Dog", "p_Bee"], ["dog", "cat"]) == ("cat", "dog", "Bee")


def test_each_order_of_random_names(rng):
    letters = list(string.ascii_lowercase)
    for _ in range(50):
        names = list({"".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(4)})
        for order in itertools.permutations(names):
            assert in_order_of([f"pred_{x}_0" for x in order], names) == order


@pytest.mark.parametrize(
    ("column", "names", "named"),
    [
        ("prob_no", ["no", "yes"], "no"),
        ("cat_probability", ["cat", "dog"], "cat"),
        ("P(ham)", ["ham", "spam"], "ham"),
        ("malignant", ["benign", "malignant"], "malignant"),
        ("score_not_spam", ["spam", "not spam"], "not spam"),
        ("no_show_prob", ["No", "Yes"], None),
        ("model_a_score", ["a", "b"], None),
        ("p_0", ["0", "1"], None),
        ("score", ["no", "yes"], None),
    ],
)
def test_the_class_that_a_column_names(column, names, named):
    assert named_by(column, names) == named


def test_names_that_look_alike():
    assert look_alikes(["cat", "dog", "Cat ", "dogs", " DOG", "a b", "a  b", "ab"]) == [
        ["cat", "Cat "],
        ["dog", " DOG"],
        ["a b", "a  b"],
    ]
