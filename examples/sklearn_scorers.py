"""scikit-learn: metrics as scorers of `cross_validate` and `GridSearchCV`, and beside its own."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, make_scorer
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import datarax
from datarax.metrics import AUROC, F1, BrierScore, LogLoss

x, y = load_breast_cancer(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression())


def score(y_true, y_pred, *, metric, sample_weight=None):
    """scikit-learn has the labels first, and gives each call all rows of a fold."""
    return metric.update(preds=y_pred, target=y_true, weights=sample_weight).results()


# One metric: `make_scorer` passes further arguments on to `score`. A loss needs the other sign.
log_loss = make_scorer(
    score, response_method="predict_proba", greater_is_better=False, metric=LogLoss()
)
grid = {"logisticregression__C": [0.001, 0.1, 10.0]}
search = GridSearchCV(model, grid, scoring=log_loss, cv=3).fit(x, y)
print(f"best-C {search.best_params_['logisticregression__C']:g}")
print(f"log-loss {-search.best_score_:.6f}")

# Several metrics: a callable that returns a dict is a scorer of all of them, with one prediction.
metrics = datarax.Collection(
    {"auroc": AUROC(exact=True, capacity=len(y)), "brier": BrierScore(), "f1": F1()}
)


def scores(estimator, x, y):
    return score(y, estimator.predict_proba(x)[:, 1], metric=metrics)


folds = cross_validate(search.best_estimator_, x, y, scoring=scores, cv=3)
for name in metrics:
    values = " ".join(f"{value:.6f}" for value in folds[f"test_{name}"])
    print(f"{name} {values}")

# The reverse: a metric beside scikit-learn's function. JAX has no float64 unless x64 is enabled, so
# both get the same rounded scores.
scored = search.predict_proba(x)[:, 1].astype(np.float32)
ours = score(y, scored, metric=BrierScore())
np.testing.assert_allclose(ours, brier_score_loss(y, scored), rtol=1e-6)
print(f"brier-of-all {ours:.6f}")
