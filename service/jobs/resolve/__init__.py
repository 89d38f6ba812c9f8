"""Fill in what a search body left open, and refuse what cannot work, before any device time is spent.

The defaults follow the published recipes where those say something, and otherwise the size of the dataset and of the
networks.  Everything that was chosen is written into the returned spec.
"""

from service.jobs.resolve.algorithm import listed_genotypes, planned_evaluations, seeded_genotypes
from service.jobs.resolve.devices import design_of, read_table, resolve_build, table_of
from service.jobs.resolve.evaluation import MeasurePlan, measure_plan
from service.jobs.resolve.latency import latency_pointer, latency_table, measured_limit
from service.jobs.resolve.masked import MIN_VISIBLE
from service.jobs.resolve.search import Resolved, resolve_search
from service.jobs.resolve.slimmable import ResolvedSlimmable, resolve_slimmable, slimmable_of
from service.jobs.resolve.spaces import constraints_of, field_errors, make_space, space_of, window_of
from service.jobs.resolve.splits import train_images_of
from service.jobs.resolve.teachers import on_students_grid, teacher_architecture, teacher_notices
from service.jobs.resolve.width_training import labels_after

__all__ = [
    "MIN_VISIBLE",
    "MeasurePlan",
    "Resolved",
    "ResolvedSlimmable",
    "constraints_of",
    "design_of",
    "field_errors",
    "labels_after",
    "latency_pointer",
    "latency_table",
    "listed_genotypes",
    "make_space",
    "measure_plan",
    "measured_limit",
    "on_students_grid",
    "planned_evaluations",
    "read_table",
    "resolve_build",
    "resolve_search",
    "resolve_slimmable",
    "seeded_genotypes",
    "slimmable_of",
    "space_of",
    "table_of",
    "teacher_architecture",
    "teacher_notices",
    "train_images_of",
    "window_of",
]
