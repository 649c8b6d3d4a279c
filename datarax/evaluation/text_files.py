"""Files of text (CSV, JSON lines), which are read by blocks; types are found in the first one."""

import codecs
import json
import re
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.arrow_files import (
    PyarrowFile,
    RecordBatches,
    as_schema,
    as_type,
    column_at,
    column_type,
    columns_of,
)
from datarax.evaluation.identity import FileIdentity
from datarax.evaluation.json_arrays import lines_of_array
from datarax.evaluation.json_values import NOTHING, mark_of, may_have, roots, value_at
from datarax.evaluation.locations import codec_of, read_pieces
from datarax.evaluation.tables import MIXED_MARKS, ColumnType, Part, Types, first_line
from datarax.evaluation.text_format import (
    OTHER_ENCODING,
    TextFormat,
    is_number,
    other_delimiter,
    refuse_text,
)

if TYPE_CHECKING:
    import pyarrow

# NaN is not among them: it is a number, which the metrics count as invalid.
_NULLS = ["", "NA", "N/A", "#N/A", "null", "NULL", "None"]
_NUMBERS = ("integer", "float", "boolean")
_TEXTS = ("text", "verbatim", "mark")
_TEXT_BLOCK = 2**23
_INTEGER = re.compile(r"(?<![\w.+-])[-+]?\d{16,}(?![\w.])")
_DEEPEST = 100
"""The most lists and objects of JSON within each other. pyarrow reads them by recursion, so
some thousands would end the process."""


class TextFile(PyarrowFile):
    """A file of text: one part, which is read and parsed block by block, of whole rows each.

    Types are found from its first block. Arrow gets each block as memory of its own, after it was
    checked. From a file object of Python, its threads would read ahead, and they would end the
    process if the interpreter ended meanwhile.
    """

    def whole(self) -> Part:
        part = super().whole()
        # Text is compressed to about an eighth.
        return part._replace(rows=part.rows * 8) if codec_of(self.path) else part

    def layout(self) -> tuple[Iterable[tuple[str, ColumnType]], list[Part]]:
        with closing(self.read_blocks()) as blocks:
            first = next(blocks, None)
            if first is None:
                raise MetricInputError(f"{self.path}: the file is empty")
            types = self.found_types(first)
        return ((name, _as_written(found)) for name, found in types.items()), [self.whole()]

    may_have_later_columns = False
    """True if rows far below the first may have columns that those do not have."""

    def type_of(self, name: str, *, whole: bool = False) -> ColumnType | None:
        agreed = None
        with closing(self.read_blocks()) as blocks:
            for block in blocks:
                if agreed is None or agreed.kind == "null":
                    found = self.found_type(block, name)
                    if found is None and not self.may_have_later_columns:
                        return None
                    agreed = found or agreed
                    if agreed is None or agreed.kind == "null":
                        continue
                    if not whole or agreed.lists or agreed.kind not in _NUMBERS:
                        return _as_written(agreed)
                elif not self._is_of(block, name, agreed):
                    wider = agreed._replace(kind="float")
                    if agreed.kind == "boolean" or not self._is_of(block, name, wider):
                        return MIXED_MARKS
                    agreed = wider
        if whole and agreed is not None and agreed[:2] == ("float", 0):
            # Integers of more than 64 bits: as floats, some would be equal.
            return MIXED_MARKS if self._has_rounded_integer(name, agreed) else agreed
        return agreed

    def record_batches(self, part: Part, types: Types, rows: int) -> RecordBatches:
        invalid, above = self.arrow().ArrowInvalid, 0
        now, widened = dict(types), set[str]()
        with closing(self.read_blocks()) as blocks:
            for block in blocks:
                self.check_columns(block, above)
                try:
                    table = self.parse(block, now)
                except invalid as error:
                    try:
                        wider = self._wider(block, now, above)
                        table = self.parse(block, wider)
                    except (invalid, json.JSONDecodeError):  # no column is the cause
                        raise error from None
                    widened |= {name for name in now if wider[name] != now[name]}
                    now = wider
                for name in widened:
                    rounded = self._rounded_integer(block, name, table.column(name))
                    if rounded is not None:
                        raise ValueError(
                            f"the column {name!r} holds fractions or integers of more than 64 "
                            f"bits, and in row {above + rounded[0] + 1:,} the integer "
                            f"{rounded[1]}, which no float64 has; write it as text, or round it"
                        )
                above += table.num_rows
                yield from table.to_batches()

    def check_columns(self, block: "pyarrow.Buffer", above: int) -> None:
        """Raises if a row of a block has a column that should be absent; `above` rows are read."""

    def _wider(self, block: "pyarrow.Buffer", types: Types, above: int) -> Types:
        """The types that a block needs: floats in place of integers, where it has fractions.

        Raises:
            ValueError: a column has a value that is no number; names both.
        """
        out = dict(types)
        for name, found in types.items():
            if self._is_of(block, name, found):
                continue
            out[name] = found._replace(kind="float")
            if found.kind != "integer" or not self._is_of(block, name, out[name]):
                raise ValueError(self._refusal(block, name, found, above))
        return out

    def _is_of(self, block: "pyarrow.Buffer", name: str, found: ColumnType) -> bool:
        try:
            self.parse(block, {name: found})
        except self.arrow().ArrowInvalid:
            return False
        return True

    def _refusal(self, block: "pyarrow.Buffer", name: str, found: ColumnType, above: int) -> str:
        """Describes the first value of a block that does not have the type of its column."""
        texts = list(self.texts(block, name))
        if found.kind in ("integer", "float") and not found.lists:
            for row, text in enumerate(texts, above + 1):
                if text is not None and not self._reads(text):
                    return refuse_text(name, text, f" in row {row:,}")
        return (
            f"the column {name!r} has the type {found.name} in its first rows, and holds other "
            f"values in the rows {above + 1:,} to {above + len(texts):,}"
        )

    def _reads(self, text: str) -> bool:
        point = self.text.decimal
        return text in _NULLS or is_number(text.replace(point, ".") if point != "." else text)

    def _rounded_integer(
        self, block: "pyarrow.Buffer", name: str, column: "pyarrow.ChunkedArray"
    ) -> tuple[int, str] | None:
        """The first row of a block, and its integer, of which a column of floats has another."""
        flat = column.combine_chunks()
        while self.arrow().types.is_list(flat.type):
            flat = flat.flatten()
        with np.errstate(invalid="ignore"):
            if not (np.abs(flat.to_numpy(zero_copy_only=False)) >= 2**53).any():
                return None
        for row, text in enumerate(self.texts(block, name)):
            for each in _INTEGER.findall(text or ""):
                if int(float(each)) != int(each):
                    return row, each
        return None

    def _has_rounded_integer(self, name: str, found: ColumnType) -> bool:
        with closing(self.read_blocks()) as blocks:
            return any(
                self._rounded_integer(block, name, self.parse(block, {name: found}).column(0))
                for block in blocks
            )

    def read_blocks(self) -> Generator["pyarrow.Buffer", None, None]:
        """The blocks, in which a reader may note what the later ones need of the first."""
        return self.blocks()

    def blocks(self) -> Generator["pyarrow.Buffer", None, None]:
        """The text in blocks of whole rows, each checked, as UTF-8.

        Raises:
            ValueError: a row is refused, or is longer than a block.
        """
        left = b""
        for piece, is_last in _marked_last(self.pieces()):
            text = left + piece
            end = self.whole_rows(text, is_last=is_last)
            # A piece may be short: the last one, and those of another encoding.
            if left and not end and (is_last or len(text) > _TEXT_BLOCK):
                raise ValueError(self.endless(text))
            if text[:end].strip():
                yield self._owned(text[:end])
            left = text[end:]

    def pieces(self) -> Iterator[bytes]:
        """The text in pieces, as UTF-8 without its mark; they end anywhere.

        Raises:
            ValueError: the file is damaged, or has another encoding.
        """
        decode, is_first = None, True
        if not self.text.is_utf8:
            decode = codecs.getincrementaldecoder(self.text.encoding)()
        for piece in read_pieces(self.path, _TEXT_BLOCK):
            if decode is not None:
                with _decoding(self.text.encoding):
                    piece = decode.decode(piece).encode()
            elif is_first:
                self.text.check_start(piece)
            yield piece.removeprefix(codecs.BOM_UTF8) if is_first else piece
            is_first = False
        if decode is not None:
            with _decoding(self.text.encoding):
                rest = decode.decode(b"", True).encode()  # raises if the last sign is cut
            yield rest

    def _owned(self, text: bytes) -> "pyarrow.Buffer":
        """A copy that no object of Python holds, so that Arrow's threads may drop it."""
        sink = self.arrow().BufferOutputStream()
        sink.write(text)
        sink.write(b"\n")  # the last row of a file may have none, which pyarrow takes in some ways
        return sink.getvalue()

    @abstractmethod
    def parse(self, block: "pyarrow.Buffer", types: Types) -> "pyarrow.Table":
        """These columns of a block, of these types; a column that it does not have has no values.

        Raises:
            ArrowInvalid: a row is damaged, or a value has another type.
        """

    @abstractmethod
    def found_types(self, block: "pyarrow.Buffer") -> Types:
        """The columns of a block, and their types by its values."""

    @abstractmethod
    def found_type(self, block: "pyarrow.Buffer", name: str) -> ColumnType | None:
        """The type of one column of a block by its values; None if it has no such column."""

    @abstractmethod
    def texts(self, block: "pyarrow.Buffer", name: str) -> Iterable[str | None]:
        """The values of a column of a block, as they are written."""

    @abstractmethod
    def whole_rows(self, text: bytes, *, is_last: bool) -> int:
        """The number of bytes of the whole rows that the text begins with, after a check of them.

        Raises:
            ValueError: they are refused.
        """

    def endless(self, text: bytes) -> str:
        """Describes a row that does not end in the block after the one in which it starts."""
        return f"a row is longer than {_TEXT_BLOCK:,} bytes: {_start_of(text)!r}"


class CsvFile(TextFile):
    """CSV with a line of names, and with quotes that are closed.

    A quote that is not would take the rows below it into its value.

    An empty field is no value; a quoted one is, in a column of text. But where strings are quoted,
    and no other field is empty, the writer has no other way to write that there is no value: then
    only a task of texts takes it for one. An unquoted NA is no value there.
    """

    delimiter = ","

    def __init__(self, file: FileIdentity, text: TextFormat = TextFormat()):  # noqa: B008
        super().__init__(file, text._replace(delimiter=text.delimiter or self.delimiter))
        self._delimiter = self.text.delimiter or self.delimiter
        self._names: list[str] | None = None
        """The names of the columns, once the block with them was read."""
        self._apart = False
        """True if a column of numbers has a missing value that in one of text is a string."""
        self._quotes_strings = False
        self._quoted_may_be_none = False
        mark = re.escape(self._delimiter.encode())
        self._header_in_quotes = re.compile(rb'\s*"[^"\r\n]*"(%b"[^"\r\n]*")*\s*?\r?\n' % mark)
        self._empty_field = re.compile(rb"%b[%b\r\n]|\n%b" % (mark, mark, mark))
        # A quoted value, from the start of a field to its closing quote or the end of the text.
        self._quoted = re.compile(rb'(?<![^%b\r\n])"[^"]*(?:""[^"]*)*("?)' % mark)

    def read_blocks(self) -> Generator["pyarrow.Buffer", None, None]:
        self._names = None
        for block in self.blocks():
            if self._names is None and self._header_in_quotes.match(block):
                self._quotes_strings = True
                self._quoted_may_be_none = self._empty_field.search(block) is None
            yield block
            if self._names is None:  # the first block has them; its rows, if any, are skipped
                self._names = self._header(block)

    def _header(self, block: "pyarrow.Buffer") -> list[str]:
        try:
            found = self._read(block, skip_rows_after_names=2**31 - 1)
        except self.arrow().ArrowInvalid:  # there are no rows
            found = self._read(block)
        with _decoding("utf-8"):
            return found.column_names

    def _read(
        self, block: "pyarrow.Buffer", *, skip_rows_after_names: int = 0, **convert: Any
    ) -> "pyarrow.Table":
        csv = self.arrow(".csv")
        return csv.read_csv(
            block,
            csv.ReadOptions(
                block_size=block.size,
                column_names=self._names,
                skip_rows_after_names=skip_rows_after_names,
            ),
            csv.ParseOptions(delimiter=self._delimiter),
            csv.ConvertOptions(decimal_point=self.text.decimal, **convert),
        )

    def _converted(self, block: "pyarrow.Buffer", types: Types, **nulls: Any) -> "pyarrow.Table":
        return self._read(
            block, include_columns=list(types), column_types=as_schema(types), **nulls
        )

    def _of_numbers(self) -> dict[str, Any]:
        return {"null_values": [*_NULLS, *self.text.missing_values]}

    def parse(self, block: "pyarrow.Buffer", types: Types) -> "pyarrow.Table":
        of_text = {
            "null_values": _NULLS if self._quotes_strings else [""],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": False,
        }
        types = {  # one of text would make strings of NA
            name: each._replace(kind="float") if each.kind == "null" else each
            for name, each in types.items()
        }
        texts = {name: x for name, x in types.items() if x.kind in _TEXTS}
        others = {name: each for name, each in types.items() if name not in texts}
        if not texts:
            return self._converted(block, others, **self._of_numbers())
        if not self._apart:
            # Mostly, an empty field is all that is missing: then all columns are read at once.
            try:
                return self._without_empty(self._converted(block, types, **of_text), texts)
            except self.arrow().ArrowInvalid:
                self._apart = bool(others)
                if not others:
                    raise
        tables = [self._without_empty(self._converted(block, texts, **of_text), texts)]
        if others:
            tables.append(self._converted(block, others, **self._of_numbers()))
        found = dict(pair for table in tables for pair in _named_columns(table))
        return self.arrow().table({name: found[name] for name in types})

    def _without_empty(self, table: "pyarrow.Table", texts: Types) -> "pyarrow.Table":
        """The table without the empty strings that stand for no value."""
        compute = self.arrow(".compute")
        for name, found in texts.items() if self._quoted_may_be_none else ():
            if found.kind != "verbatim":
                column = table.column(name)
                full = compute.if_else(compute.equal(column, ""), None, column)
                table = table.set_column(table.column_names.index(name), name, full)
        return table

    def found_types(self, block: "pyarrow.Buffer") -> Types:
        try:
            table = self._read(block, **self._of_numbers())
        except self.arrow().ArrowInvalid as error:
            hint = other_delimiter(_start_of(bytes(block)), self._delimiter)
            raise ValueError(f"{first_line(error)}{hint}") from None
        found: Types = {}
        for name, column in _named_columns(table):
            kind = column_type(column.type)
            kind = kind._replace(kind="doubled") if name in found else kind
            found[name] = self._with_example(kind, column)
        return found

    def _with_example(self, found: ColumnType, column: "pyarrow.ChunkedArray") -> ColumnType:
        if found.name == "binary":
            return found._replace(name=f"binary, as it is no UTF-8 ({OTHER_ENCODING})")
        if found.kind != "text":
            return found
        texts = (x.as_py() for chunk in column.chunks for x in chunk)
        return found._replace(example=next((x for x in texts if x and not self._reads(x)), None))

    def _refusal(self, block: "pyarrow.Buffer", name: str, found: ColumnType, above: int) -> str:
        if found.kind == "text":
            return f"the column {name!r} holds bytes that are no UTF-8: {OTHER_ENCODING}"
        return super()._refusal(block, name, found, above)

    def found_type(self, block: "pyarrow.Buffer", name: str) -> ColumnType | None:
        names = self._names or self._header(block)
        if name not in names:
            return None
        column = self._read(block, include_columns=[name], **self._of_numbers()).column(0)
        return self._with_example(column_type(column.type), column)

    def texts(self, block: "pyarrow.Buffer", name: str) -> Iterable[str | None]:
        pa = self.arrow()
        column = self._read(
            block, include_columns=[name], column_types={name: pa.binary()}, null_values=[]
        ).column(0)
        missing = {*_NULLS, *self.text.missing_values}
        texts = ((x or b"").decode("utf-8", "backslashreplace") for x in column.to_pylist())
        return (None if x in missing else x for x in texts)

    def whole_rows(self, text: bytes, *, is_last: bool) -> int:
        end = len(text) if is_last else _last_break(text, len(text))
        rows = text[:end]
        # Almost always, each row has an even number of quotes. That is faster to see.
        if b'"' not in rows or b'"' not in rows.translate(None, _NO_QUOTES).replace(b'""', b""):
            return end
        for value in self._quoted.finditer(rows):
            # pyarrow appends what follows the closing quote. After a line break, that was likely
            # the opening quote of another row.
            breaks, after = (
                b"\n" in value[0] or b"\r" in value[0],
                rows[value.end() : value.end() + 1],
            )
            ends = (b"", self._delimiter.encode(), b"\n", b"\r")
            if breaks and value[1] and after not in ends:
                raise ValueError(_open_quote(rows[_last_break(rows, value.start()) :]))
            if not value[1]:
                start = _last_break(rows, value.start())
                if is_last:
                    raise ValueError(_open_quote(rows[start:]))
                return start  # its value may go on in the next block
        return end

    def endless(self, text: bytes) -> str:
        is_open = any(not value[1] for value in self._quoted.finditer(text))
        return _open_quote(text) if is_open else super().endless(text)


class TsvFile(CsvFile):
    """CSV with tabs between the fields."""

    delimiter = "\t"


class JsonLinesFile(TextFile):
    """JSON lines that do not nest deep."""

    may_have_later_columns = True

    def check_columns(self, block: "pyarrow.Buffer", above: int) -> None:
        names = [name for name in self.absent if may_have(bytes(block), name)]
        for row, each in enumerate(_objects(block) if names else (), above + 1):
            name = next((name for name in names if each.get(name) is not None), None)
            if name is not None:
                raise ValueError(
                    f"row {row:,} is the first with a value of {name!r}, which the metric takes, "
                    f"far below the first rows; say what is meant by columns=: {name!r} to use "
                    f"it and leave out rows without it, or None for none"
                )

    def parse(self, block: "pyarrow.Buffer", types: Types) -> "pyarrow.Table":
        try:
            return self._parse(block, types)
        except self.arrow().ArrowInvalid:
            slow = [
                name for name, x in types.items() if x.kind in ("verbatim", "mark") or "." in name
            ]
            if not slow:
                raise
        # pyarrow reads neither numbers as text, nor strings and lists in one column.
        found, others = {}, {name: each for name, each in types.items() if name not in slow}
        if others:
            found = dict(_named_columns(self.parse(block, others)))
        for name in slow:
            found[name] = self._values(block, name, types[name])
        return self.arrow().table({name: found[name] for name in types})

    def _parse(self, block: "pyarrow.Buffer", types: Types) -> "pyarrow.Table":
        """As `parse`, by pyarrow alone."""
        pa, text = self.arrow(), bytes(block) if any("." in name for name in types) else b""
        flat, within = dict[str, ColumnType](), dict[str, ColumnType]()
        for name, each in types.items():
            has_root = any(may_have(text, root) for root in roots(name))
            if has_root and may_have(text, name):  # it may be in one or the other
                raise pa.ArrowInvalid(name)
            (within if has_root else flat)[name] = each
        schema = pa.schema([*as_schema(flat), *_objects_with(within)])
        table = self._read(block, explicit_schema=schema, unexpected="ignore")
        if not within:
            return table
        rows = [[column_at(x, name) for name in types] for x in table.to_batches()]
        return pa.Table.from_batches([pa.record_batch(x, [*types]) for x in rows])

    def _values(self, block: "pyarrow.Buffer", name: str, given: ColumnType) -> "pyarrow.Array":
        """One column of a block, by Python.

        Raises:
            ArrowInvalid: a value has another type.
        """
        pa = self.arrow()
        numbers = {"parse_float": str, "parse_int": str, "parse_constant": str}
        is_text = given.kind in ("verbatim", "mark")
        rows = _objects(block, **numbers) if is_text else _objects(block)
        values = [None if x is NOTHING else x for x in (value_at(row, name) for row in rows)]
        fits = {given.kind, "null", *(["integer"] if given.kind == "float" else [])}
        try:
            if given.kind == "verbatim":
                return pa.array(map(_texts_in, values), pa.list_(pa.string()))
            if given.kind == "mark":
                return pa.array(map(mark_of, values), pa.string())
            found = pa.array(values)
            if column_type(found.type).kind not in fits:
                raise ValueError("it has another type")  # which a cast would not refuse
            return found.cast(as_type(given))  # `array` would truncate fractions
        except (ValueError, TypeError, OverflowError) as error:
            raise pa.ArrowInvalid(str(error)) from None

    def _refusal(self, block: "pyarrow.Buffer", name: str, found: ColumnType, above: int) -> str:
        for row, each in enumerate(_objects(block), above + 1):
            value = value_at(each, name)
            is_refused = {
                "verbatim": _has_object(value),
                "mark": isinstance(value, dict | list),
            }
            if is_refused.get(found.kind):
                expected = "texts" if found.kind == "verbatim" else "single values"
                shown = json.dumps(value)
                return (
                    f"the column {name!r} has the value {shown:.60} in row {row:,}; expected "
                    f"{expected}"
                )
        return super()._refusal(block, name, found, above)

    def _read(self, block: "pyarrow.Buffer", *, unexpected: str, **options: Any) -> "pyarrow.Table":
        json = self.arrow(".json")
        return json.read_json(
            block,
            json.ReadOptions(block_size=block.size),
            parse_options=json.ParseOptions(unexpected_field_behavior=unexpected, **options),
        )

    def found_types(self, block: "pyarrow.Buffer") -> Types:
        try:
            schema = self._read(block, unexpected="infer").schema
            return dict(columns_of(schema))
        except self.arrow().ArrowInvalid as error:
            # A column with values of several types is an error only if it is asked for.
            try:
                rows = list(_objects(block, object_pairs_hook=_once))
            except ValueError:
                hint = _ARRAY_HINT * bytes(block).lstrip().startswith(b"[")
                raise ValueError(f"{first_line(error)}{hint}") from None
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: self._type_of_values([row.get(name) for row in rows]) for name in names}

    def found_type(self, block: "pyarrow.Buffer", name: str) -> ColumnType | None:
        text = bytes(block)
        if not any(may_have(text, key) for key in (name, *roots(name))):
            return None
        values = [value_at(row, name) for row in _objects(block)]
        if all(x is NOTHING for x in values):
            return None
        return self._type_of_values([None if x is NOTHING else x for x in values])

    def _type_of_values(self, values: list[Any]) -> ColumnType:
        pa = self.arrow()
        try:
            return column_type(pa.array(values).type)
        except OverflowError:  # an integer beyond 64 bits
            return column_type(pa.float64())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            shown: dict[type, Any] = {}  # the first value of each type
            for x in values:
                if x is not None:
                    shown.setdefault(type(x), x)
            examples = " and ".join(f"{x!r:.30}" for x in [*shown.values()][:2])
            return ColumnType("mixed", 0, False, f"mixed ({examples})")

    def texts(self, block: "pyarrow.Buffer", name: str) -> Iterable[str | None]:
        for row in _objects(block, parse_float=str, parse_int=str):
            value = value_at(row, name)
            value = None if value is NOTHING else value
            yield value if value is None or isinstance(value, str) else json.dumps(value)

    def endless(self, text: bytes) -> str:
        return super().endless(text) + _ARRAY_HINT * text.lstrip().startswith(b"[")

    def whole_rows(self, text: bytes, *, is_last: bool) -> int:
        end = len(text) if is_last else _last_break(text, len(text))
        text = text[:end]
        if b"\\" in text:
            # An escaped quote ends no string. First the pairs, as a backslash may be escaped too.
            text = text.replace(rb"\\", b"").replace(rb"\"", b"")
        text = text.translate(None, _NO_BRACKETS).replace(b'""', b"")
        # The strings with brackets within.
        text = re.sub(rb'"[^"]*"', b"", text)
        for _ in range(_DEEPEST + 1):
            shorter = text.replace(b"{}", b"").replace(b"[]", b"")
            if len(shorter) == len(text):
                break
            text = shorter
        # Pairs are left if they nest deeper.
        if len(text) > _DEEPEST:
            raise ValueError(f"lists or objects are nested more than {_DEEPEST} deep")
        return end


class JsonFile(JsonLinesFile):
    """JSON with an array of objects, each read as if it were a line of JSON lines."""

    def pieces(self) -> Iterator[bytes]:
        return lines_of_array(super().pieces(), _TEXT_BLOCK)


def _marked_last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The pieces, each with whether it is the last."""
    left = iter(pieces)
    now = next(left, None)
    while now is not None:
        following = next(left, None)
        yield now, following is None
        now = following


def _named_columns(table: "pyarrow.Table") -> Iterator[tuple[str, "pyarrow.ChunkedArray"]]:
    return zip(table.column_names, table.columns, strict=True)


def _objects_with(types: Types) -> "pyarrow.Schema":
    """The schema of objects with these keys, each of which is within others: "answers.text"."""
    pa = optional("pyarrow", "parquet", "reading this file")
    tree: dict[str, Any] = {}
    for name, found in types.items():
        *above, last = name.split(".")
        node = tree
        for key in above:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise pa.ArrowInvalid(name)
        if last in node:
            raise pa.ArrowInvalid(name)
        node[last] = as_type(found)

    def field(key: str, node: Any) -> "pyarrow.Field":
        is_object = isinstance(node, dict)
        return pa.field(key, pa.struct(list(starmap(field, node.items()))) if is_object else node)

    return pa.schema(list(starmap(field, tree.items())))


def _as_written(found: ColumnType) -> ColumnType:
    """The type as which a column is read: a text that looks like a date stays one."""
    return found._replace(kind="text", name="string") if found.kind == "time" else found


def _texts_in(value: Any) -> list[str | None] | None:
    """The texts of a value whose numbers are strings; lists within lists become one.

    Raises:
        ArrowInvalid: it holds an object, as if pyarrow had read it.
    """
    if isinstance(value, list):
        return [each for x in value for each in (_texts_in(x) or [None])]
    if isinstance(value, dict):
        raise optional("pyarrow", "parquet", "reading this file").ArrowInvalid("an object")
    return [json.dumps(value) if isinstance(value, bool) else value] if value is not None else None


def _has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_object, value)))


def _objects(block: "pyarrow.Buffer", **options: Any) -> Iterator[dict[str, Any]]:
    """The objects of the lines of a block; an error if a line holds none."""
    for line in bytes(block).splitlines():
        if line.strip():
            row = json.loads(line, **options)
            if not isinstance(row, dict):
                raise ValueError(f"a line holds {row!r:.60}; expected an object")
            yield row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name was specified twice")
    return found


_ARRAY_HINT = "; the name of a file with an array of objects ends in .json"


@contextmanager
def _decoding(encoding: str) -> Iterator[None]:
    """Says what to do about bytes that are no text in the encoding of the file."""
    try:
        yield
    except UnicodeError:  # also where the mark of UTF-16 is missing
        raise ValueError(f"its bytes are no {encoding.upper()}: {OTHER_ENCODING}") from None


def _last_break(text: bytes, stop: int) -> int:
    """The place after the last line break before `stop`; 0 if there is none."""
    return max(text.rfind(mark, 0, stop) for mark in (b"\n", b"\r")) + 1


def _start_of(text: bytes) -> str:
    """The start of the first row, for an error."""
    return text.splitlines()[0][:60].decode("utf-8", "replace")


def _open_quote(text: bytes) -> str:
    return f"a quote is not closed in the row {_start_of(text)!r}"


_NO_QUOTES = bytes(set(range(256)) - set(b'"\r\n'))
_NO_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
