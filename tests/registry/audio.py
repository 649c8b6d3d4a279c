"""Cases of metrics of pairs of signals, and of mixtures of several."""

from functools import partial
from itertools import permutations
from typing import Any

import mir_eval
import numpy as np
import pystoi
import scipy.linalg

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs

# At least 31 frames of 256 samples, a half apart, of which the silent ones are removed.
SAMPLES, RATE, TAPS = 4480, 10_000, 8
SOURCES, SHORT = 3, 12
BANDS, FRAMES = 3, 4


def delayed_sum(x: np.ndarray, now: float, before: float) -> np.ndarray:
    return now * x + before * np.pad(x, ((0, 0), (1, 0)))[:, :-1]


def speech(seed: int, size: int, samples: int = SAMPLES) -> np.ndarray:
    """Noise whose loudness varies, in part silent, (size, samples)."""
    rng = np.random.default_rng(seed)
    noise = delayed_sum(rng.normal(size=(size, samples)), 1.0, 0.8)
    place = np.arange(samples) / samples + rng.random((size, 1))
    loudness = np.where(np.sin(place * 40) > 0.95, 0, 1 + 0.9 * np.sin(place * 20))
    return noise * loudness


def seed_of(rng: np.random.Generator) -> int:
    """Hypothesis draws the seed alone: so many numbers are too many, and zeros are no signal."""
    return int(rng.integers(0, 2**31 - 1))


def signals(
    rng: np.random.Generator,
    size: int,
    *,
    noise: float = 0.5,
    scale: float = 1.0,
    offset: float = 0.0,
) -> Arrays:
    seed = seed_of(rng)
    target, other = speech(seed, size), speech(seed + 1, size)
    preds = delayed_sum(target, 0.8, 0.2) + noise * other
    return {
        "preds": (scale * preds + offset).astype(np.float32),
        "target": (scale * target + offset).astype(np.float32),
    }


def finite(preds: np.ndarray, target: np.ndarray) -> Any:
    return (np.isfinite(preds) & np.isfinite(target)).all(-1)


NOT_FINITE = (np.nan, np.inf, -np.inf)
SIGNALS = Inputs(
    "signals",
    draw=signals,
    valid=finite,
    spoil={"preds": NOT_FINITE, "target": NOT_FINITE},
    hard={
        "little noise": partial(signals, noise=1e-4),
        "mostly noise": partial(signals, noise=30.0),
        "quiet": partial(signals, scale=1e-12),
        "an offset": partial(signals, offset=3.0),
    },
)


def mixtures(rng: np.random.Generator, size: int, *, noise: float = 0.3) -> Arrays:
    rng = np.random.default_rng(seed_of(rng))
    target = rng.normal(size=(size, SOURCES, SHORT))
    order = np.argsort(rng.random((size, SOURCES)), -1)
    preds = np.take_along_axis(target, order[..., None], 1) + noise * rng.normal(size=target.shape)
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


MIXTURES = Inputs(
    "mixtures",
    draw=mixtures,
    valid=lambda preds, target: finite(preds, target).all(-1),
    spoil={"preds": NOT_FINITE, "target": NOT_FINITE},
    hard={
        "little noise": partial(mixtures, noise=1e-3),
        "noise alone": partial(mixtures, noise=100.0),
    },
)


def spectra(rng: np.random.Generator, size: int, *, noise: float = 0.3) -> Arrays:
    rng = np.random.default_rng(seed_of(rng))
    target = rng.normal(size=(size, BANDS, FRAMES, 2))
    preds = 0.7 * target + noise * rng.normal(size=target.shape)
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


SPECTRA = Inputs(
    "spectra",
    draw=spectra,
    valid=lambda preds, target: (np.isfinite(preds) & np.isfinite(target)).all((-1, -2, -3)),
    spoil={"preds": NOT_FINITE, "target": NOT_FINITE},
    hard={"little noise": partial(spectra, noise=1e-3)},
)


def decibels(signal: np.ndarray, rest: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.divide(fsum(signal**2), fsum(rest**2))))


def snr(preds: np.ndarray, target: np.ndarray) -> float:
    return decibels(target, target - preds)


def si_sdr(preds: np.ndarray, target: np.ndarray) -> float:
    scaled = (preds @ target) / (target @ target) * target
    return decibels(scaled, preds - scaled)


def si_snr(preds: np.ndarray, target: np.ndarray) -> float:
    return si_sdr(preds - preds.mean(), target - target.mean())


def sdr(preds: np.ndarray, target: np.ndarray, taps: int = TAPS) -> float:
    """The rest of a least-squares fit of the delayed targets."""
    delayed = scipy.linalg.toeplitz(np.pad(target, (0, taps - 1)), np.zeros(taps))
    padded = np.pad(preds, (0, taps - 1))
    fitted = delayed @ np.linalg.lstsq(delayed, padded, rcond=None)[0]
    return decibels(fitted, padded - fitted)


def mir_eval_sdr(preds: np.ndarray, target: np.ndarray, taps: int = 512) -> float:
    parts = mir_eval.separation._bss_decomp_mtifilt(target[None], preds, 0, taps)
    return float(mir_eval.separation._bss_source_crit(*parts)[0])


def stoi(preds: np.ndarray, target: np.ndarray) -> float:
    return pystoi.stoi(target, preds, RATE)


def permuted(preds: np.ndarray, target: np.ndarray) -> float:
    table = np.array([[si_sdr(p, t) for t in target] for p in preds])
    orders = np.array(list(permutations(range(len(preds)))))
    return float(table[orders, np.arange(len(preds))].mean(-1).max())


def complex_si_snr(preds: np.ndarray, target: np.ndarray) -> float:
    return si_sdr(preds.ravel(), target.ravel())


def sa_sdr(preds: np.ndarray, target: np.ndarray) -> float:
    factor = fsum(preds * target) / fsum(target**2)
    return decibels(factor * target, preds - factor * target)


def sa_sdr_as_given(preds: np.ndarray, target: np.ndarray) -> float:
    preds, target = (x - x.mean(-1, keepdims=True) for x in (preds, target))
    return decibels(target, preds - target)


def mean_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, value: Any) -> float:
    used = w > 0
    total = fsum(w[used])
    values = [value(p, t) for p, t in zip(preds[used], target[used], strict=True)]
    return fsum(w[used] * np.array(values)) / total if total else np.nan


def rounded(w: np.ndarray, **inputs: np.ndarray) -> float:
    """Each value is rounded once, from float64; no mean is above 128 dB."""
    return 2 * 128 * 2.0**-24


def case(name: str, cls: Any, inputs: Inputs, value: Any, **config: Any) -> Case:
    return Case(
        name,
        cls,
        inputs,
        partial(mean_of, value=value),
        config,
        atol=rounded,
        state_atol=lambda w, **inputs: 128 * rounded(w),
        together=inputs.id,
        without_float64=200,
    )


CASES = [
    case("snr", metrics.SNR, SIGNALS, snr),
    case("sisdr", metrics.SISDR, SIGNALS, si_sdr),
    case("sisnr", metrics.SISNR, SIGNALS, si_snr),
    case("sdr", metrics.SDR, SIGNALS, sdr, filter_length=TAPS),
    case("stoi", metrics.STOI, SIGNALS, stoi, sample_rate=RATE),
    case(
        "permutation_invariant",
        metrics.PermutationInvariant,
        MIXTURES,
        permuted,
        metric=metrics.SISDR,
    ),
    case("sasdr", metrics.SASDR, MIXTURES, sa_sdr),
    case(
        "sasdr_as_given",
        metrics.SASDR,
        MIXTURES,
        sa_sdr_as_given,
        scale_invariant=False,
        zero_mean=True,
    ),
    case("complex_sisnr", metrics.ComplexSISNR, SPECTRA, complex_si_snr),
]
