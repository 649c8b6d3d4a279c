"""Checkpoints of metrics, and writers of results."""

from datarax.io.checkpoint import pack as pack
from datarax.io.checkpoint import restore as restore
from datarax.io.checkpoint import save as save
from datarax.io.checkpoint import unpack as unpack
from datarax.io.console_writer import ConsoleWriter as ConsoleWriter
from datarax.io.jsonl_writer import JSONLWriter as JSONLWriter
from datarax.io.mlflow_writer import MLflowWriter as MLflowWriter
from datarax.io.monitoring_writer import MonitoringWriter as MonitoringWriter
from datarax.io.multi_writer import MultiWriter as MultiWriter
from datarax.io.parquet_writer import ParquetWriter as ParquetWriter
from datarax.io.tensorboard_writer import TensorBoardWriter as TensorBoardWriter
from datarax.io.wandb_writer import WandbWriter as WandbWriter
from datarax.io.writer import Writer as Writer
