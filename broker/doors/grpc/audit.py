"""`dledger.v1.Audit` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final, Protocol

from broker.reading.segments import SegmentProblem
from broker.services.audit import Audit, RangeDigests, SegmentClaim, Survey
from dledger.reading.files import in_unicode
from dledger.reading.log_start import FROM_THE_FIRST
from dledger.wire import audit_pb2 as apb

_PROBLEMS: Final[dict[SegmentProblem | None, apb.RangeProblem]] = {
    None: apb.RANGE_PROBLEM_UNSPECIFIED,
    SegmentProblem.MISSING: apb.SEGMENT_MISSING,
    SegmentProblem.RETAINED: apb.SEGMENT_RETAINED,
    SegmentProblem.TRUNCATED: apb.SEGMENT_TRUNCATED,
    SegmentProblem.UNREADABLE: apb.SEGMENT_UNREADABLE,
}


class DigestContext(Protocol):
    """`grpc.aio.ServicerContext`, as far as a stream of digests uses it."""

    async def write(self, message: apb.RangeDigests, /) -> None: ...


class AuditDoor:
    """Handlers of `dledger.v1.Audit`."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def survey_log(self, request: apb.SurveyLogRequest, context: object) -> apb.LogSurvey:
        return _log_survey(await self._audit.survey(request.broker_group))

    async def digest_ranges(self, request: apb.DigestRangesRequest, context: DigestContext) -> None:
        claim = SegmentClaim(request.broker_group, request.segment_size_bytes, request.base)
        answers = self._audit.digests(claim, tuple(request.edges), request.bytes_per_second)
        async with aclosing(answers):
            async for answer in answers:
                await context.write(_range_digests(answer))

    async def read_range(
        self, request: apb.ReadRangeRequest, context: object
    ) -> apb.ReadRangeResponse:
        claim = SegmentClaim(request.broker_group, request.segment_size_bytes, request.base)
        found = await self._audit.read(
            claim,
            offset=request.offset,
            size=request.size,
            bytes_per_s=request.bytes_per_second,
        )
        return apb.ReadRangeResponse(
            data=found.content, problem=_PROBLEMS[found.problem], detail=in_unicode(found.detail)
        )

    async def read_base(
        self, request: apb.ReadBaseRequest, context: object
    ) -> apb.ReadBaseResponse:
        found = await self._audit.base(request.broker_group, request.at)
        return apb.ReadBaseResponse(
            log_start=found.note,
            size_bytes=found.size_bytes,
            piece=found.content,
            problem=apb.SEGMENT_UNREADABLE if found.detail else apb.RANGE_PROBLEM_UNSPECIFIED,
            detail=in_unicode(found.detail),
        )


def _log_survey(survey: Survey) -> apb.LogSurvey:
    place, content = survey.place, survey.content
    answer = apb.LogSurvey(
        broker_group=place.broker_group,
        node_id=place.node_id,
        commitlog=in_unicode(place.folder),
        segment_size_bytes=place.segment_size_bytes,
        committed_offset=survey.committed_offset,
        first_index=survey.first_index,
        files=[
            apb.LogFile(name=in_unicode(each.name), size=each.size_bytes) for each in content.files
        ],
        checkpoint_readable=content.checkpoint is not None,
        problem=in_unicode(content.problem),
    )
    if content.start is not None:
        answer.log_start = b"" if content.start == FROM_THE_FIRST else content.start.encode()
    if content.checkpoint is not None:
        answer.checkpoint_first_offset = content.checkpoint.first_offset
        answer.checkpoint_consume_queue_index = content.checkpoint.consume_queue_index
    return answer


def _range_digests(answer: RangeDigests) -> apb.RangeDigests:
    hashed = answer.hashed
    return apb.RangeDigests(
        digests=hashed.digests,
        done=answer.is_last,
        problem=_PROBLEMS[hashed.problem],
        readable=hashed.readable,
        detail=in_unicode(hashed.detail),
    )
