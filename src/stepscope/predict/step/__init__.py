"""Time and memory of one training step, from model, GPU, cluster and layout alone. Offline, standard library only."""

from stepscope.predict.step.calibration import StepCalibration
from stepscope.predict.step.cluster import Cluster
from stepscope.predict.step.layout import Layout
from stepscope.predict.step.model import ModelShape
from stepscope.predict.step.step import StepPrediction, predict_step

__all__ = ["Cluster", "Layout", "ModelShape", "StepCalibration", "StepPrediction", "predict_step"]
