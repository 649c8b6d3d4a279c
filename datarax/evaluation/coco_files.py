"""Results and ground truth of detections in the JSON files of COCO, as a row for each image.

The format: https://cocodataset.org/#format-data and https://cocodataset.org/#format-results.
"""

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.identity import FileIdentity, unchanged
from datarax.evaluation.locations import is_uri, opened
from datarax.evaluation.tables import Column, ColumnType, Part, TableFile, Types, key_of, reading

if TYPE_CHECKING:
    import pyarrow

PREDICTED = ("boxes", "scores", "labels")
"""The columns of the detections of an image."""
TRUE = ("target_boxes", "target_labels", "crowd", "area")
"""The columns of its ground truth."""
_KINDS: dict[type, str] = {bool: "boolean", int: "integer", float: "float", str: "text"}
_LISTS = {
    name: ColumnType("integer" if "labels" in name or name == "crowd" else "float", 1, True, "list")
    for name in (*PREDICTED, *TRUE)
} | {name: ColumnType("float", 2, True, "list of boxes") for name in ("boxes", "target_boxes")}
Json = Any


class CocoTable(NamedTuple):
    """The images of the ground truth, in its order, with the detections of each."""

    columns: "dict[str, pyarrow.Array]"
    """Those of `PREDICTED` and `TRUE`, and what the ground truth says of each image."""
    types: Types
    classes: tuple[str, ...]
    """The names of the categories in the order of their ids: a label is a place among them."""
    detections: int
    remarks: tuple[str, ...]
    """What a user should know of the two files."""

    @property
    def images(self) -> int:
        """The number of images."""
        return len(self.columns["boxes"])


class CocoFile(TableFile):
    """The results of a model; the ground truth is the file `beside` of its format."""

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        table = self.whole()
        part = Part(self.file, 0, 1, key_of(self.path), table.images, counted=True, start=0)
        return [*table.types.items()], [part]

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        table = self.whole()
        for start in range(0, table.images, rows):
            yield {name: table.columns[name].slice(start, rows) for name in types}

    def whole(self) -> CocoTable:
        """Both files.

        Raises:
            MetricInputError: one of them is not what is expected; names it, and the entry.
        """
        assert self.text.beside is not None
        return table_of(self.file, self.text.beside)


@lru_cache(maxsize=4)
def table_of(results: FileIdentity, truth: FileIdentity) -> CocoTable:
    """The table of two files: see `CocoFile.whole`."""
    # Cached, because it is asked for several times: of its columns, of its classes and of its rows.
    found = _of_truth(truth)
    detected = _Detections.of(results, found)
    lists = detected.columns(found) | found.columns()
    own, types = _of_images(found.images)
    types = {name: each for name, each in types.items() if name not in lists}
    columns = {name: own[name] for name in types} | lists
    return CocoTable(
        columns,
        types | _LISTS,
        found.classes,
        len(detected.scores),
        (*found.remarks, *detected.remarks),
    )


class _Truth(NamedTuple):
    path: str
    images: list[Mapping[str, Json]]
    place: dict[Json, int]
    """The place of each image by its id."""
    category_ids: list[Json]
    classes: tuple[str, ...]
    image: np.ndarray
    """The place of the image of each box."""
    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    remarks: tuple[str, ...]

    def columns(self) -> "dict[str, pyarrow.Array]":
        """The ground truth by image."""
        lists = (self.boxes, self.labels, self.crowd, self.area)
        return _by_image(self.image, len(self.images), dict(zip(TRUE, lists, strict=True)))

    @property
    def order(self) -> np.ndarray:
        """The place of each image among all by their ids; as they are if ids have no order."""
        try:
            ids = sorted(self.place)
        except TypeError:
            return np.arange(len(self.place))
        return np.argsort([self.place[each] for each in ids])


def _of_truth(file: FileIdentity) -> _Truth:
    path = file.path
    with unchanged(file), reading(path):
        given = _parsed(path)
        if not isinstance(given, dict) or not isinstance(given.get("annotations"), list):
            hint = "; it looks like the results: FILE and --target are the other way round"
            raise MetricInputError(
                f"{path}: it is no ground truth of COCO, an object with the lists images, "
                f"annotations and categories{hint if isinstance(given, list) else ''}"
            )
        images = _objects(given.get("images"), path, "images", ("id",))
        categories = _objects(given.get("categories"), path, "categories", ("id",))
        if not images or not categories:
            what = "categories" if images else "images"
            raise MetricInputError(f"{path}: the list {what!r} is empty, or there is none")
        place, ids = _places(images, path, "image"), _places(categories, path, "category")
        # By their ids, as pycocotools lists them.
        ordered = sorted(ids, key=lambda x: (isinstance(x, str), x))
        number = {each: i for i, each in enumerate(ordered)}
        boxes = _objects(
            given["annotations"], path, "annotations", ("image_id", "category_id", "bbox")
        )
        image = _matched(boxes, "image_id", place, path, "annotations", "image")
        labels = _matched(boxes, "category_id", number, path, "annotations", "category")
        for array, name in ((image, "image_id"), (labels, "category_id")):
            wrong = np.flatnonzero(array < 0)
            if wrong.size:
                raise MetricInputError(
                    f"{path}: annotations[{wrong[0]}] has {name} {boxes[wrong[0]][name]!r}, which "
                    f"is none of its {'images' if array is image else 'categories'}"
                )
        corners = _numbers([x["bbox"] for x in boxes], path, "annotations", "bbox", 4)
        size = corners[:, 2] * corners[:, 3]
        given_area = [x.get("area", size[i]) for i, x in enumerate(boxes)]
        area = _numbers(given_area, path, "annotations", "area")
        crowd = _numbers([x.get("iscrowd", 0) for x in boxes], path, "annotations", "iscrowd") != 0
    ignored = sum(bool(x.get("ignore")) and not c for x, c in zip(boxes, crowd, strict=True))
    said = (
        f"{path}: {ignored:,} boxes have ignore=1 without iscrowd=1; they count, as in pycocotools"
    )
    shown = tuple(str(categories[ids[each]].get("name", each)) for each in ordered)
    twice = {name for name, count in Counter(shown).items() if count > 1}
    classes = tuple(
        f"{name} ({each})" if name in twice else name
        for name, each in zip(shown, ordered, strict=True)
    )
    remarks = (said,) if ignored else ()
    return _Truth(
        *(path, images, place, ordered, classes),
        *(image, corners, labels.astype(np.int32), crowd.astype(np.int32), area, remarks),
    )


class _Detections(NamedTuple):
    image: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, file: FileIdentity, truth: _Truth) -> "_Detections":
        path = file.path
        with unchanged(file), reading(path):
            given = _parsed(path)
        if not isinstance(given, list):
            hint = "; it looks like a ground truth, which --target names"
            raise MetricInputError(
                f"{path}: it is no list of results of COCO, [{{image_id, category_id, bbox, score}}"
                f", ...]{hint if isinstance(given, dict) and 'images' in given else ''}"
            )
        found = _objects(given, path, "", ("image_id", "category_id", "bbox", "score"))
        number = {each: i for i, each in enumerate(truth.category_ids)}
        image = _matched(found, "image_id", truth.place, path, "", "image")
        absent = np.flatnonzero(image < 0)
        if absent.size:
            first = found[absent[0]]["image_id"]
            raise MetricInputError(
                f"{path}: [{absent[0]}] has image_id {first!r}, which is no image of {truth.path}"
                f"{_other_type(first, truth.place)}; so have {absent.size:,} of {len(found):,} "
                f"detections. Name the ground truth of the same images"
            )
        labels = _matched(found, "category_id", number, path, "", "category")
        boxes = _numbers([x["bbox"] for x in found], path, "", "bbox", 4)
        scores = _numbers([x["score"] for x in found], path, "", "score")
        known, remarks = labels >= 0, []
        if not known.all():
            others = Counter(found[i]["category_id"] for i in np.flatnonzero(~known))
            shown = ", ".join(repr(x) for x, _ in others.most_common(5))
            said = (
                f"{path}: {(~known).sum():,} of {len(found):,} detections are of categories that "
                f"{truth.path} does not have ({shown}{', ...' if len(others) > 5 else ''})"
            )
            if not known.any():
                hint = _other_type(next(iter(others)), number)
                raise MetricInputError(f"{said}{hint}; expected its category ids")
            remarks.append(f"{said}; they are left out, as in pycocotools")
            image, boxes, scores, labels = (x[known] for x in (image, boxes, scores, labels))
        without = len(truth.images) - len(np.unique(image))
        if without:
            remarks.append(
                f"{path}: {without:,} of {len(truth.images):,} images have no detection; their "
                f"ground truth counts as not found"
            )
        scores = distinct_scores(scores, truth.order[image])
        return cls(image, boxes, scores, labels.astype(np.int32), tuple(remarks))

    def columns(self, truth: _Truth) -> "dict[str, pyarrow.Array]":
        """The detections by image."""
        lists = (self.boxes, self.scores, self.labels)
        return _by_image(self.image, len(truth.images), dict(zip(PREDICTED, lists, strict=True)))


def distinct_scores(scores: np.ndarray, image: np.ndarray) -> np.ndarray:
    """The scores as float32 that are all distinct, in the order in which pycocotools ranks them.

    Of equal scores, those of the first image come first, and in an image the first in the file.
    Each score moves up by as few units in the last place as needed, so none falls below its value.
    """
    used = np.flatnonzero(np.isfinite(scores))
    order = used[np.lexsort((-used, -image[used], scores[used]))]  # the lowest first
    with np.errstate(over="ignore"):
        bits = scores[order].astype(np.float32).view(np.int32).astype(np.int64)
    # Floats as integers in their order, of which zero is 0; subnormals are taken as zero.
    least = int(np.finfo(np.float32).tiny.view(np.int32)) - 1
    size = np.maximum((bits & 0x7FFFFFFF) - least, 0)
    steps = np.arange(len(order))
    place = np.maximum.accumulate(np.where(bits < 0, -size, size) - steps) + steps
    moved = np.where(place == 0, 0, np.abs(place) + least).astype(np.int32).view(np.float32)
    out = scores.astype(np.float32)
    out[order] = np.where(place < 0, -moved, moved)
    return out


def _parsed(path: str) -> Json:
    with opened(path) if is_uri(path) else Path(path).open("rb") as file:
        return json.load(file)


def _objects(given: Json, path: str, what: str, keys: Sequence[str]) -> list[Mapping[str, Json]]:
    """A list of objects that have these keys."""
    for i, each in enumerate(given if isinstance(given, list) else ()):
        absent = [key for key in keys if not isinstance(each, dict) or key not in each]
        if absent:
            has = f"has no {absent[0]!r}" if isinstance(each, dict) else f"is {each!r:.40}"
            has_mask = isinstance(each, dict) and "segmentation" in each
            more = "; boxes are evaluated, not masks" if has_mask else ""
            raise MetricInputError(
                f"{path}: {what}[{i}] {has}; expected an object with {', '.join(keys)}{more}"
            )
    return given if isinstance(given, list) else []


def _places(objects: Sequence[Mapping[str, Json]], path: str, what: str) -> dict[Json, int]:
    """The place of each object by its id."""
    found: dict[Json, int] = {}
    for i, each in enumerate(objects):
        if not isinstance(each["id"], int | str):
            raise MetricInputError(
                f"{path}: the {what} {i} has the id {each['id']!r}; expected an integer or a string"
            )
        if each["id"] in found:
            raise MetricInputError(f"{path}: there are two of the {what} id {each['id']!r}")
        found[each["id"]] = i
    return found


def _matched(
    objects: Sequence[Mapping[str, Json]],
    key: str,
    places: Mapping[Json, int],
    path: str,
    what: str,
    of: str,
) -> np.ndarray:
    """The place of the id that each object has; -1 for one that there is not."""
    try:
        return np.array([places.get(each[key], -1) for each in objects], np.int64)
    except TypeError:  # a list is no key
        i = next(i for i, each in enumerate(objects) if isinstance(each[key], dict | list))
        raise MetricInputError(
            f"{path}: {what}[{i}] has {key} {objects[i][key]!r:.40}; expected the id of one {of}"
        ) from None


def _numbers(
    given: Sequence[Json], path: str, what: str, key: str, width: int | None = None
) -> np.ndarray:
    """Numbers, or lists of so many numbers, as an array of float64."""
    shape = (len(given),) if width is None else (len(given), width)
    if not given:
        return np.zeros(shape)
    try:
        array = np.asarray(given)
    except ValueError:
        array = np.zeros(0)
    if array.shape == shape and array.dtype.kind in "iufb":
        return array.astype(np.float64)
    for i, x in enumerate(given):
        each = [x] if width is None else x
        right = isinstance(each, list) and len(each) == (width or 1)
        if not right or not all(isinstance(y, int | float) for y in each):
            expected = "a number" if width is None else "[x, y, width, height]"
            raise MetricInputError(f"{path}: {what}[{i}] has {key} {x!r:.60}; expected {expected}")
    return np.asarray([[*map(float, x)] if width else float(x) for x in given])


def _other_type(given: Json, known: Mapping[Json, int]) -> str:
    """Says that an id is known as a number or as a string, if it is."""
    for other in (str, int):
        try:
            if other(given) in known:
                return f" (it has {other(given)!r})"
        except (TypeError, ValueError):
            continue
    return ""


def _by_image(
    image: np.ndarray, images: int, lists: Mapping[str, np.ndarray]
) -> "dict[str, pyarrow.Array]":
    """Values that belong to images as lists, one for each image, in the order of the file."""
    pa = optional("pyarrow", "parquet", "reading COCO files")
    order = np.argsort(image, kind="stable")
    ends = np.cumsum(np.bincount(image, minlength=images))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    columns = {}
    for name, values in lists.items():
        items = pa.array(np.ascontiguousarray(values[order]).reshape(-1))
        if values.ndim == 2:
            items = pa.FixedSizeListArray.from_arrays(items, values.shape[1])
        columns[name] = pa.ListArray.from_arrays(offsets, items)
    return columns


def _of_images(images: Sequence[Mapping[str, Json]]) -> "tuple[dict[str, pyarrow.Array], Types]":
    """What is said of each image, by name: numbers, strings and booleans."""
    pa = optional("pyarrow", "parquet", "reading COCO files")
    columns, types = {}, {}
    for name in dict.fromkeys(key for image in images for key in image):
        values = [image.get(name) for image in images]
        found = {type(x) for x in values} - {type(None)}
        found = {float} if found == {int, float} else found
        called = "image_id" if name == "id" else name
        kind = _KINDS.get(found.pop()) if len(found) == 1 else None
        if kind is not None:
            columns[called] = pa.array(values)
            types[called] = ColumnType(kind, 0, False, kind)
    return columns, types
