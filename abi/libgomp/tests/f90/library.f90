! What programs ask `omp_lib`, threadprivate variables, regions in regions, target regions, allocators, in Fortran. With an argument it
! shows what the runtime knows instead. Says "ok".
module kept
  implicit none
  integer :: mine = -1
  real(8), allocatable :: heap(:)
  integer :: in_common
  common /shared_out/ in_common
  !$omp threadprivate(mine, heap, /shared_out/)
end module

program library
  use omp_lib
  use kept
  use iso_c_binding
  implicit none
  character(len=16) :: what
  integer :: round

  call get_command_argument(1, what)
  select case (what)
  case ('')
  case ('env')
    call omp_display_env(.false.)
    call omp_display_env(.true.)
    stop
  case ('affinity')
    call show_affinity()
    stop
  end select
  call omp_set_dynamic(.false.)
  call omp_set_num_threads(4)
  do round = 1, 3
    call threadprivates()
    call nested()
    call variables()
    call locks()
    call criticals()
    call targets()
    call allocators()
    call places()
  end do
  print '(a)', 'ok'

contains

  subroutine threadprivates()
    integer :: wrong, i
    wrong = 0
    mine = 70
    in_common = 71
    if (allocated(heap)) deallocate (heap)
    allocate (heap(2))
    heap = [1d0, 2d0]
    !$omp parallel copyin(mine, heap, in_common) reduction(+:wrong)
    if (mine /= 70 .or. in_common /= 71 .or. any(heap /= [1d0, 2d0])) wrong = wrong + 1
    mine = omp_get_thread_num()
    heap = heap * mine
    in_common = mine + 100
    !$omp barrier
    !$omp single
    mine = 99
    in_common = 98
    !$omp end single copyprivate(mine, in_common)
    if (mine /= 99 .or. in_common /= 98) wrong = wrong + 1
    mine = omp_get_thread_num()
    !$omp end parallel
    call check(wrong == 0, 1)
    do i = 1, 3
      !$omp parallel reduction(+:wrong)
      if (mine /= omp_get_thread_num() .or. heap(2) /= 2 * mine) wrong = wrong + 1
      !$omp end parallel
    end do
    call check(wrong == 0, 2)
  end subroutine

  subroutine nested()
    integer :: inner, levels, wrong
    inner = 0
    wrong = 0
    call omp_set_max_active_levels(2)
    call check(omp_get_max_active_levels() == 2 .and. omp_get_level() == 0, 10)
    !$omp parallel num_threads(3) reduction(+:inner, wrong) private(levels)
    levels = omp_get_thread_num()
    !$omp parallel num_threads(2) reduction(+:inner, wrong)
    inner = inner + 1
    if (omp_get_level() /= 2 .or. omp_get_active_level() /= 2) wrong = wrong + 1
    if (omp_get_ancestor_thread_num(1) /= levels .or. omp_get_team_size(1) /= 3) wrong = wrong + 1
    if (omp_get_team_size(2) /= 2 .or. omp_get_team_size(3) /= -1) wrong = wrong + 1
    if (omp_get_ancestor_thread_num(2) /= omp_get_thread_num() .or. omp_get_ancestor_thread_num(0) /= 0) wrong = wrong + 1
    !$omp parallel num_threads(4) reduction(+:wrong)
    if (omp_get_num_threads() /= 1 .or. omp_get_active_level() /= 2 .or. omp_get_level() /= 3) wrong = wrong + 1
    !$omp end parallel
    !$omp end parallel
    !$omp end parallel
    call check(inner == 6 .and. wrong == 0, 11)
  end subroutine

  subroutine variables()
    integer(omp_sched_kind) :: kind
    integer :: chunk
    integer(8) :: wide
    call omp_set_num_threads(3)
    call check(omp_get_max_threads() == 3, 20)
    call omp_set_num_threads(4_8)
    call check(omp_get_max_threads() == 4, 21)
    call omp_set_schedule(omp_sched_guided, 9_8)
    call omp_get_schedule(kind, wide)
    call check(kind == omp_sched_guided .and. wide == 9, 22)
    call omp_set_schedule(omp_sched_static, -3)
    call omp_get_schedule(kind, chunk)
    call check(kind == omp_sched_static .and. chunk == 0, 23)
    call omp_set_dynamic(.true._8)
    call check(omp_get_dynamic(), 24)
    call omp_set_dynamic(.false.)
    call check(.not. omp_get_dynamic() .and. .not. omp_in_parallel() .and. .not. omp_in_final(), 25)
    call check(omp_get_thread_limit() > 1000 .and. omp_get_num_procs() > 0, 26)
    call check(omp_get_wtime() > 0 .and. omp_get_wtick() > 0, 27)
    call check(omp_get_supported_active_levels() > 100, 28)
    call omp_set_teams_thread_limit(7)
    call omp_set_num_teams(5)
    call check(omp_get_teams_thread_limit() == 7 .and. omp_get_max_teams() == 5, 29)
    call check(omp_get_proc_bind() == omp_proc_bind_false .or. omp_get_num_places() > 0, 30)
    call check(openmp_version >= 201511, 31)
  end subroutine

  subroutine locks()
    integer(omp_lock_kind) :: lock, second
    integer(omp_nest_lock_kind) :: nest
    integer :: count, tried, depth, i
    count = 0
    tried = 0
    call omp_init_lock(lock)
    call omp_init_lock(second)
    call omp_init_nest_lock(nest)
    !$omp parallel private(i, depth) reduction(+:tried)
    do i = 1, 300
      if (omp_test_lock(lock)) then
        tried = tried + 1
        call omp_unset_lock(lock)
      end if
      call omp_set_lock(second)
      count = count + 1
      call omp_unset_lock(second)
      depth = omp_test_nest_lock(nest)
      if (depth > 0) then
        call check(depth == 1, 40)
        call omp_set_nest_lock(nest)
        call check(omp_test_nest_lock(nest) == 3, 41)
        call omp_unset_nest_lock(nest)
        call omp_unset_nest_lock(nest)
        call omp_unset_nest_lock(nest)
      end if
    end do
    !$omp end parallel
    call check(count == 1200 .and. tried >= 1, 42)
    call omp_set_lock(lock)
    call check(.not. omp_test_lock(lock), 43)
    call omp_unset_lock(lock)
    call omp_destroy_lock(lock)
    call omp_destroy_lock(second)
    call omp_destroy_nest_lock(nest)
  end subroutine

  subroutine criticals()
    integer :: a, b, c, i, updated, old
    a = 0
    b = 0
    c = 0
    updated = 0
    !$omp parallel private(i, old)
    do i = 1, 300
      !$omp critical
      a = a + 1
      !$omp end critical
      !$omp critical (first)
      b = b + 1
      !$omp critical (second)
      c = c + 1
      !$omp end critical (second)
      !$omp end critical (first)
      !$omp critical (hinted) hint(omp_sync_hint_contended)
      updated = updated + 1
      !$omp end critical (hinted)
      !$omp atomic capture
      old = updated
      updated = updated + 0
      !$omp end atomic
    end do
    !$omp end parallel
    call check(a == 1200 .and. b == 1200 .and. c == 1200 .and. updated == 1200, 50)
  end subroutine

  subroutine targets()
    integer :: i, total, there(20), threads
    total = 0
    threads = 0
    there = 1
    !$omp target map(tofrom: total, there)
    total = total + sum(there)
    there = 2
    call check(omp_is_initial_device(), 60)
    !$omp end target
    call check(total == 20 .and. all(there == 2), 61)
    !$omp target teams distribute parallel do map(tofrom: there) reduction(+: total) num_teams(2)
    do i = 1, 20
      there(i) = i
      total = total + i
    end do
    call check(total == 230 .and. sum(there) == 210, 62)
    !$omp target data map(tofrom: there)
    !$omp parallel
    !$omp single
    !$omp target nowait depend(out: there)
    there = there + 1
    !$omp end target
    !$omp task depend(in: there)
    total = sum(there)
    !$omp end task
    !$omp end single
    !$omp end parallel
    !$omp target update from(there)
    !$omp end target data
    call check(total == 230, 63)
    !$omp target enter data map(to: there)
    !$omp target exit data map(from: there)
    !$omp teams num_teams(3) reduction(+: threads)
    if (omp_get_num_teams() >= 1 .and. omp_get_team_num() < omp_get_num_teams()) threads = threads + 1
    !$omp end teams
    call check(threads >= 1 .and. threads <= 3, 64)
    call check(omp_get_num_devices() == 0 .and. omp_get_initial_device() == omp_get_default_device(), 65)
    call check(omp_target_is_present(c_null_ptr, omp_get_initial_device()) == 1, 66)
  end subroutine

  subroutine allocators()
    integer(omp_allocator_handle_kind) :: allocator
    type(omp_alloctrait) :: traits(3)
    type(c_ptr) :: block, more
    integer, pointer :: numbers(:)
    integer :: i, wrong
    traits(1) = omp_alloctrait(omp_atk_alignment, 256)
    traits(2) = omp_alloctrait(omp_atk_pool_size, 4096)
    traits(3) = omp_alloctrait(omp_atk_fallback, omp_atv_null_fb)
    allocator = omp_init_allocator(omp_default_mem_space, 3, traits)
    call check(allocator /= omp_null_allocator, 70)
    block = omp_alloc(400_c_size_t, allocator)
    call check(c_associated(block) .and. mod(transfer(block, 0_c_intptr_t), 256_c_intptr_t) == 0, 71)
    call c_f_pointer(block, numbers, [100])
    numbers = [(i, i = 1, 100)]
    more = omp_alloc(8192_c_size_t, allocator)
    call check(.not. c_associated(more), 72)
    block = omp_realloc(block, 2000_c_size_t, allocator, allocator)
    call c_f_pointer(block, numbers, [500])
    call check(all(numbers(:100) == [(i, i = 1, 100)]), 73)
    call omp_free(block, allocator)
    block = omp_aligned_calloc(64_c_size_t, 10_c_size_t, 8_c_size_t, allocator)
    call c_f_pointer(block, numbers, [20])
    call check(all(numbers == 0), 74)
    call omp_free(block, omp_null_allocator)
    call omp_destroy_allocator(allocator)
    call check(omp_get_default_allocator() == omp_default_mem_alloc, 75)
    wrong = 0
    !$omp parallel reduction(+:wrong)
    call omp_set_default_allocator(omp_large_cap_mem_alloc)
    if (omp_get_default_allocator() /= omp_large_cap_mem_alloc) wrong = wrong + 1
    call omp_set_default_allocator(omp_default_mem_alloc)
    !$omp end parallel
    call check(wrong == 0, 76)
  end subroutine

  subroutine places()
    integer :: i, count
    integer, allocatable :: cpus(:), numbers(:)
    do i = 0, omp_get_num_places() - 1
      count = omp_get_place_num_procs(i)
      allocate (cpus(count))
      call omp_get_place_proc_ids(i, cpus)
      call check(all(cpus >= 0), 80)
      deallocate (cpus)
    end do
    allocate (numbers(omp_get_partition_num_places()))
    call omp_get_partition_place_nums(numbers)
    call check(all(numbers >= 0) .and. omp_get_place_num() < max(1, omp_get_num_places()), 81)
    deallocate (numbers)
  end subroutine

  subroutine show_affinity()
    character(len=60) :: format, short*5
    integer :: length, i
    length = omp_get_affinity_format(format)
    print '(i0, 1x, a)', length, trim(format)
    call omp_set_affinity_format('%0.3L of level %L, %n of %N in team %t of %T, ancestor %a')
    call omp_display_affinity('')
    !$omp parallel num_threads(3) private(i)
    do i = 0, 2
      !$omp barrier
      if (i == omp_get_thread_num()) call omp_display_affinity('')
      !$omp barrier
    end do
    !$omp end parallel
    ! Cut off, padded with blanks, and the length that it has.
    length = omp_capture_affinity(short, 'thread %5n.')
    print '(i0, 3a)', length, '[', short, ']'
    length = omp_capture_affinity(format, '%%%{nesting_level}|%.4{thread_num}|%4{num_threads}')
    print '(i0, 3a)', length, '[', format, ']'
    length = omp_get_affinity_format(short)
    print '(i0, 3a)', length, '[', short, ']'
  end subroutine

  include 'check.inc'
end program
