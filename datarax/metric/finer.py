"""Metrics that can also read their value from a finer statistic, and so share that one."""

from typing import ClassVar, Self

from datarax._typing import PyTree
from datarax.algebra.fields import Config
from datarax.algebra.pytrees import children_of
from datarax.algebra.saving import SavedState, type_name
from datarax.algebra.state import State
from datarax.distributed.placement import placed_near
from datarax.metric.base import Metric
from datarax.metric.declared import statistic_of


class ReadsFiner(Metric):
    """The base of metrics that can also read their value from a finer statistic.

    In a collection such a metric shares the statistic of another one, and needs no own one.
    """

    finer_statistics: ClassVar[tuple[type[State], ...]] = ()
    """The statistics, with the fields of its own one, from which it can read its value too."""

    def over(self, statistic: State) -> Self:
        """The metric over a statistic of another metric, if it can read its value from it.

        Both are empty.
        """
        ours, finer = children_of(self).get("statistic"), self.finer_statistics
        if not isinstance(statistic, finer) or not isinstance(ours, State):
            return self
        # Fields that the finer statistic lacks could not be compared, so it might hold other data.
        if isinstance(ours, finer) or not ours.fields.keys() <= statistic.fields.keys():
            return self
        if any(getattr(ours, name) != getattr(statistic, name) for name in ours.fields):
            return self
        return self.with_parts({"statistic": statistic})

    def loaded(self, saved: SavedState, where: str, *, partial: bool = False) -> Self:
        like = self._over_saved(saved)
        loaded = super(ReadsFiner, like).loaded(saved, where, partial=partial)
        return loaded if like is self else placed_near(self, loaded)

    def _over_saved(self, saved: PyTree) -> Self:
        """The empty metric over the statistic that was saved: in a collection, it may share one."""
        try:
            kind = saved["state"]["statistic"]["type"]
        except (TypeError, KeyError):  # loading it raises
            return self
        if kind == type_name(statistic_of(self)):
            return self
        given = {name: getattr(self, name) for name, each in self.fields.items() if each.init}
        # Of a new instance, because this one may be over another statistic already.
        own = statistic_of(type(self)(**given))
        for each in (own, *(cls.from_fields(own) for cls in self.finer_statistics)):
            if type_name(each) == kind:
                return self.with_parts({"statistic": each})
        return self

    def _made_with(self, fields: Config) -> Self:
        # `replace` makes a new instance over its own statistic, and the data is in the finer one.
        return super()._made_with(fields).over(children_of(self)["statistic"])
